package raftstore

import (
	"fmt"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// stateLog ends the node where the log of its own that pebble keeps, the write-ahead
// log of a state, cannot be changed for another: the one before was not written to its
// end, or the new one cannot be begun. pebble (v2.1.7, rotateWAL) panics on both with a
// lock given back that its deferred calls give back again. So neither a recovered panic
// nor runtime.Goexit leads out of it, and the process would end with a Go stack that
// says nothing of the disk; the goroutine stays where it is instead, for good.
type stateLog struct {
	fatal *fatal
	used  atomic.Bool // the database is open, and nobody closes it
}

// created is called when pebble has begun a log, or failed to.
func (l *stateLog) created(info pebble.WALCreateInfo) { l.failed(info.Err) }

// failed is called with the error of a log, if there is one, before pebble has it.
func (l *stateLog) failed(err error) {
	if err != nil && l.used.Load() {
		l.fatal.dieHere(fmt.Errorf("the state's own log: %w", err))
	}
}
