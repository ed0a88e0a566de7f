package raftstore

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/morainefs/moraine"
)

// fatal keeps the first error that ends a node.
type fatal struct {
	node  string // for the errors of stopped
	once  sync.Once
	cause error
	ended chan struct{} // closed once cause is set
	// broken: pebble stopped midway, perhaps holding locks, and must not be called again.
	broken atomic.Bool
	stuck  chan struct{} // closed once a goroutine stays in pebble permanently
	stay   sync.Once
}

func newFatal() *fatal { return &fatal{ended: make(chan struct{}), stuck: make(chan struct{})} }

// set ends the node and returns at once.
func (f *fatal) set(err error) {
	f.once.Do(func() {
		f.cause = err
		close(f.ended)
	})
}

// die ends the node and the calling goroutine, which must be raft's or pebble's. Neither library
// can continue after the error, and neither lets its caller return one.
func (f *fatal) die(err error) {
	f.set(err)
	runtime.Goexit()
}

// dieHere ends the node and blocks the calling goroutine, which is in pebble, permanently. To the
// goroutines that wait for it, this is like a disk that hangs.
func (f *fatal) dieHere(err error) {
	f.broken.Store(true)
	f.set(err)
	f.stay.Do(func() { close(f.stuck) })
	select {}
}

// err returns the error; nil if there is none.
func (f *fatal) err() error {
	select {
	case <-f.ended:
		return f.cause
	default:
		return nil
	}
}

// stopped is the error for calls to a node that does not run.
func (f *fatal) stopped(op string) error {
	err := f.err()
	if err == nil {
		err = errors.New("the node is not running")
	}
	return &moraine.Error{Op: op, Ref: f.node, Kind: moraine.Unavailable, Err: err}
}
