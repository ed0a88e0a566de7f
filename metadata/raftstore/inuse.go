package raftstore

// InUse returns the present use of the store's bounded resources, by name: zero if no entry is
// proposed and no read waits for a round. It may be called concurrently.
func (s *Store) InUse() map[string]int64 {
	use := map[string]int64{"entries in flight": int64(len(s.proposals.inFlight)), "reads that wait for a round": 0}
	s.reads.queue.mu.Lock()
	defer s.reads.queue.mu.Unlock()
	if s.reads.queue.next != nil {
		use["reads that wait for a round"] = int64(s.reads.queue.next.reads)
	}
	return use
}
