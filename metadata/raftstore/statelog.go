package raftstore

import (
	"fmt"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// stateLog ends the node when pebble cannot switch its own write-ahead log of a
// state. Pebble could not complete the previous log, or could not start the new
// one. pebble (v2.1.7, rotateWAL) panics on both while a lock is already
// released that its deferred calls release again. Neither a recovered panic nor
// runtime.Goexit can leave it, and the process would end with a Go stack that
// does not mention the disk. The goroutine therefore stays there permanently.
type stateLog struct {
	fatal *fatal
	used  atomic.Bool // the database is open and not being closed
}

// created is called when pebble has started a log, or failed to.
func (l *stateLog) created(info pebble.WALCreateInfo) { l.failed(info.Err) }

// failed is called with the error of a log, if any, before pebble receives it.
func (l *stateLog) failed(err error) {
	if err != nil && l.used.Load() {
		l.fatal.dieHere(fmt.Errorf("the state's own log: %w", err))
	}
}
