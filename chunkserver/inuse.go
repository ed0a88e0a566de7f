package chunkserver

// InUse returns, by name, how much of its memory, queues and limited resources this
// server uses now. Without running requests it is 0, except for caches, which have
// a limit. It may be called concurrently.
func (s *Server) InUse() map[string]int64 {
	use := map[string]int64{}
	if f := s.fleet.Load(); f != nil && f.memory != nil {
		m := f.memory.Stats()
		use["chunks kept in memory"] = int64(m.Chunks)
		use["memory of chunks kept"] = m.CleanBytes + m.DirtyBytes
		use["memory of chunks in flight"] = m.Arena.InUseBytes - m.CleanBytes - m.DirtyBytes
		use["requests that wait for memory of chunks"] = m.Arena.Waiting
	}
	if p := s.pieces; p != nil {
		p.inUse(use)
	}
	return use
}

func (p *pieces) inUse(use map[string]int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	readers := 0
	for _, pc := range p.held {
		readers += pc.refs
	}
	use["pieces kept"], use["pieces under way"] = int64(p.idle.Len()), int64(len(p.held)-p.idle.Len())
	use["readers of pieces"] = int64(readers)
	use["fetches that wait for memory"] = int64(p.waiting)
	use["files to be staged"] = int64(len(p.asks))
	var kept int64
	for e := p.idle.Front(); e != nil; e = e.Next() {
		kept += e.Value.(*piece).buf.Held()
	}
	use["memory of pieces kept"] = kept
	use["memory of pieces under way"] = p.pool.Stats().InUseBytes - kept
}
