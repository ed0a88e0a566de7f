package raftstore

import "io"

// reception extracts a checkpoint while its stream arrives. A received checkpoint takes its own
// size of disk once.
type reception struct {
	w     *io.PipeWriter
	ended chan struct{} // closed when applied and err are known
	// applied is the smallest possible index of its state.
	applied uint64
	err     error
}

// receive starts the checkpoint dir. The caller must call end or cancel.
func (s *snapshotStore) receive(dir string) *reception {
	r, w := io.Pipe()
	c := &reception{w: w, ended: make(chan struct{})}
	go func() {
		defer close(c.ended)
		stream, err := newStreamReader(r, s.cluster)
		if err == nil {
			c.applied = stream.info.applied
			err = stream.extract(s.fs, dir)
		}
		c.err = err
		r.CloseWithError(err)
	}()
	return c
}

// Write adds the next bytes of the stream.
func (c *reception) Write(p []byte) (int, error) { return c.w.Write(p) }

// end waits until everything written is complete and durable in the checkpoint; otherwise it
// returns an error.
func (c *reception) end() (applied uint64, err error) {
	c.w.Close()
	<-c.ended
	return c.applied, c.err
}

// cancel abandons the checkpoint and waits until nobody writes to it.
func (c *reception) cancel() {
	c.w.CloseWithError(io.ErrUnexpectedEOF)
	<-c.ended
}
