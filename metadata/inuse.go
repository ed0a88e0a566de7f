package metadata

// InUse returns the present sizes of this server's tables, queues and bounded resources, by name.
// When no request is in progress, the queues are empty; the tables have what sessions own. It may
// be called concurrently.
func (s *Server) InUse() map[string]int64 {
	use := map[string]int64{}
	s.lease.InUse(use)
	s.backups.mu.Lock()
	use["backups that are read"] = int64(len(s.backups.open))
	s.backups.mu.Unlock()
	if store, ok := s.store.(interface{ InUse() map[string]int64 }); ok {
		for name, n := range store.InUse() {
			use[name] = n
		}
	}
	l := s.leader.Load()
	if l == nil {
		return use
	}
	use["commands that wait for an entry"] = int64(len(l.proposer.queue))
	use["entries under way"] = l.proposer.underWay.Load()
	l.sessions.mu.Lock()
	use["sessions"] = int64(len(l.sessions.byID))
	l.sessions.mu.Unlock()
	return use
}
