package localstore

import "github.com/morainefs/moraine/internal/vfs"

// A change of a key is a rename or a removal. It is durable after the sync that
// follows. In between, a power loss may undo it. Requests for the key therefore
// wait for the sync, so that the store never answers with a state that may be
// undone.

// change is a running change.
type change struct {
	key  string
	done chan struct{} // closed when it is durable, or the key is doubtful
}

// begin marks a key as changing until end is called. The caller holds changes.
func (s *Store) begin(key string) (end func()) {
	c := &change{key, make(chan struct{})}
	s.mu.Lock()
	s.changing = c
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		s.changing = nil
		s.mu.Unlock()
		close(c.done)
	}
}

// lockDurable takes mu at a moment when none of the requested keys is changing. The
// caller does not hold changes.
func (s *Store) lockDurable(asked func(key string) bool) {
	for {
		s.mu.Lock()
		c := s.changing
		if c == nil || !asked(c.key) {
			return
		}
		s.mu.Unlock()
		<-c.done
	}
}

// await waits until none of the requested keys is changing.
func (s *Store) await(asked func(key string) bool) {
	s.lockDurable(asked)
	s.mu.Unlock()
}

// openDurable opens the file of a key at a moment when the key is not changing.
func (s *Store) openDurable(key string) (vfs.File, error) {
	for {
		s.lockDurable(func(k string) bool { return k == key })
		doubt := s.doubtful[key]
		s.mu.Unlock()
		if doubt != nil {
			return nil, doubt
		}
		f, err := s.fs.Open(s.objectFile(key), vfs.Read)
		s.mu.Lock()
		c := s.changing
		sure := (c == nil || c.key != key) && s.doubtful[key] == nil
		s.mu.Unlock()
		if sure {
			return f, err
		}
		if err == nil {
			_ = f.Close() // closes a file that was only read
		}
	}
}
