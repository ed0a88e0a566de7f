package localstore

import "github.com/morainefs/moraine/internal/vfs"

// A change of a key takes place by a rename or a removal, and is durable after the sync that
// follows. In between a loss of power may undo it: who asks for the key then waits for the
// sync, so that nothing is said that may turn out not to be so.

// change is one that is under way.
type change struct {
	key  string
	done chan struct{} // closed once it is durable, or the key is doubtful
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

// lockDurable takes mu at a moment at which no key of those asked for is changing. The
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

// await waits until no key of those asked for is changing.
func (s *Store) await(asked func(key string) bool) {
	s.lockDurable(asked)
	s.mu.Unlock()
}

// openDurable opens the file of a key at a moment at which it is not changing.
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
			_ = f.Close() // of a file that was not read
		}
	}
}
