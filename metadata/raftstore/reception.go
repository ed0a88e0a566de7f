package raftstore

import "io"

// A reception lays out a checkpoint while its stream arrives. What is received
// takes its own size of disk, once.
type reception struct {
	w     *io.PipeWriter
	ended chan struct{} // closed when applied and err are known
	// applied is the index that the state in it has reached at least.
	applied uint64
	err     error
}

// receive begins the checkpoint dir. end or cancel must be called.
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

// Write takes in the next bytes of the stream.
func (c *reception) Write(p []byte) (int, error) { return c.w.Write(p) }

// end waits until all that was written lies in the checkpoint, whole and durable
// there: an error says that it does not.
func (c *reception) end() (applied uint64, err error) {
	c.w.Close()
	<-c.ended
	return c.applied, c.err
}

// cancel gives the checkpoint up, and waits until nobody writes to it.
func (c *reception) cancel() {
	c.w.CloseWithError(io.ErrUnexpectedEOF)
	<-c.ended
}
