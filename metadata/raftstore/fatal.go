package raftstore

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// fatal is the error that ends a node, the first one.
type fatal struct {
	once  sync.Once
	cause error
	ended chan struct{} // closed once cause is set
	// broken: pebble stopped half-way through something, perhaps holding locks,
	// and must not be called again.
	broken atomic.Bool
	stuck  chan struct{} // closed once a goroutine stays in pebble for good
	stay   sync.Once
}

func newFatal() *fatal { return &fatal{ended: make(chan struct{}), stuck: make(chan struct{})} }

// set ends the node; it returns at once.
func (f *fatal) set(err error) {
	f.once.Do(func() {
		f.cause = err
		close(f.ended)
	})
}

// die ends the node and the calling goroutine, which must be one of raft's or
// pebble's: neither can go on after the error, and neither library lets its
// caller return one.
func (f *fatal) die(err error) {
	f.set(err)
	runtime.Goexit()
}

// dieHere ends the node and keeps the calling goroutine, one of those that are in
// pebble, where it is for good: for those who wait for it, a disk that hangs.
func (f *fatal) dieHere(err error) {
	f.broken.Store(true)
	f.set(err)
	f.stay.Do(func() { close(f.stuck) })
	select {}
}

// err returns the error, nil while there is none.
func (f *fatal) err() error {
	select {
	case <-f.ended:
		return f.cause
	default:
		return nil
	}
}
