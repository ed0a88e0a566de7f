package delegation

import (
	"time"
)

// calls are the calls that wait for changes. When a batch is confirmed, those that waited for it return,
// and often their programs call again at once: each makes its next file. If the sender did not wait for
// them, they would come just too late for the next batch, and half of them would wait while the other
// half is sent, for ever. So it waits for as many calls as there were, but for less than it
// takes to send a batch.
type calls struct {
	waiting map[uint64]int // by the number of the change
	now     int            // how many wait
	before  int            // how many waited when the last batch was confirmed
	until   time.Time      // the sender waits for as many
}

// gatherMost bounds how long the sender waits for calls.
const gatherMost = 2 * time.Millisecond

func (w *calls) begin(seq uint64) {
	if w.waiting == nil {
		w.waiting = map[uint64]int{}
	}
	w.waiting[seq]++
	w.now++
}

// end ends the wait of a call that gives up.
func (w *calls) end(seq uint64) {
	if w.waiting[seq] == 0 {
		return
	}
	w.now--
	if w.waiting[seq]--; w.waiting[seq] == 0 {
		delete(w.waiting, seq)
	}
}

// confirmed ends the waits for changes up to a number, whose batch took a time.
func (w *calls) confirmed(done uint64, took time.Duration, now time.Time) {
	w.before = w.now
	w.until = now.Add(min(took/2, gatherMost))
	for seq, n := range w.waiting {
		if seq <= done {
			w.now -= n
			delete(w.waiting, seq)
		}
	}
}

// left is for how long the sender waits for other calls.
func (w *calls) left(now time.Time) time.Duration {
	if w.now >= w.before {
		return 0
	}
	return w.until.Sub(now)
}
