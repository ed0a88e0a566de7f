package chunkserver

import (
	"sync"
	"time"
)

const (
	// yieldEvery is how often the rate of repairs is thought over.
	yieldEvery = time.Second
	// yieldTimes is how much slower than without repairs the slow ones among the
	// clients' requests may be before repairs get less. Below twice: what is wanted is
	// that they never take twice as long.
	yieldTimes = 1.5
	// yieldStart is what repairs begin with where clients are there, in bytes a second;
	// it doubles until they feel it.
	yieldStart = 32 << 20
	// yieldFloor is what repairs get in any case, in bytes a second: a cluster that
	// is busy for ever must heal too.
	yieldFloor = 16 << 20
	// yieldWait is about the longest that a request is held back: its sender takes a
	// server that does not answer for a dead one. Where so many wait that it would be
	// longer they go more quickly, evenly.
	yieldWait = 5 * time.Second
	// yieldProbe is after how many rounds with repairs one without is made, to learn
	// anew how quick requests are by themselves.
	yieldProbe = 30
)

// yielder gives repairs as much as clients do not feel. Each second it holds the
// time that the slow ones (the slowest twentieth) of the clients' requests took
// against what it is without repairs: where it is half as much again, repairs get
// less by as much, half at least, else a sixteenth more. They go one after the other,
// with nothing saved up: a burst after a pause is what a client would feel.
type yielder struct {
	most float64 // bytes a second

	mu      sync.Mutex // guards what follows
	rate    float64
	next    time.Time // when the next request may go
	began   time.Time // of this round
	reads   felt
	writes  felt
	bytes   int64 // of repairs in this round
	waiting int64 // bytes of repairs that were told to wait
	round   int   // since it was learned what requests take without repairs
	calm    bool  // the round before was without repairs
	active  bool  // clients asked in the round before
	unfelt  bool  // no client has felt these repairs so far
}

func newYielder(most int64, now time.Time) *yielder {
	return &yielder{most: float64(most), rate: float64(most), began: now, next: now, unfelt: true}
}

// background returns how long a repair's request must wait, and its share: how much
// longer the next one must. again: it is to ask again then, since those that a round
// without repairs held back go one after the other too. Else released or gaveUp must
// follow.
func (y *yielder) background(now time.Time, bytes int) (wait, share time.Duration, again bool) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.turn(now)
	if y.probing() {
		return y.began.Add(yieldEvery).Sub(now) + time.Millisecond, 0, true
	}
	if y.next.Before(now) {
		y.next = now
	}
	wait = y.next.Sub(now)
	y.waiting += int64(bytes)
	pace := max(y.rate, float64(y.waiting)/yieldWait.Seconds())
	share = time.Duration(float64(bytes) / pace * float64(time.Second))
	y.next = y.next.Add(share)
	return wait, share, false
}

// gaveUp gives back what a request was to have that waits no longer.
func (y *yielder) gaveUp(bytes int, share time.Duration) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.waiting -= int64(bytes)
	y.next = y.next.Add(-share)
}

// released notes that a repair's request goes on: a round is one without repairs
// only where those that had been told to wait have gone too.
func (y *yielder) released(now time.Time, bytes int) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.turn(now)
	y.bytes += int64(bytes)
	y.waiting -= int64(bytes)
}

// probing reports whether this round is to be without repairs.
func (y *yielder) probing() bool {
	return y.round >= yieldProbe || (!y.reads.known() && !y.writes.known() && y.active)
}

// foreground notes a client's request.
func (y *yielder) foreground(now time.Time, write bool, took time.Duration) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.turn(now)
	if write {
		y.writes.note(took)
	} else {
		y.reads.note(took)
	}
}

// turn ends a round that is over. The caller holds mu.
func (y *yielder) turn(now time.Time) {
	if now.Sub(y.began) < yieldEvery {
		return
	}
	enough := y.reads.enough() || y.writes.enough()
	switch {
	case !enough: // nobody is there to mind
		y.rate *= 2
		y.round = 0
	case y.bytes == 0:
		// What began before still has its effect on the first such round.
		if y.calm {
			y.learn()
		}
	default:
		y.round++
		y.adapt()
	}
	y.rate = max(min(y.rate, y.most), min(yieldFloor, y.most))
	y.reads.end()
	y.writes.end()
	y.began, y.calm, y.active, y.bytes = now, y.bytes == 0, enough, 0
}

// learn takes what requests took in a round without repairs. The caller holds mu.
func (y *yielder) learn() {
	if y.round < yieldProbe { // nothing is repaired: it begins anew
		y.rate, y.unfelt = min(y.rate, yieldStart), true
	}
	y.reads.learn()
	y.writes.learn()
	y.round = 0
}

// adapt gives repairs less where clients feel them, and more where they do not. The caller
// holds mu.
func (y *yielder) adapt() {
	times := max(y.reads.times(), y.writes.times())
	switch {
	case times == 0: // not known yet
	case times > yieldTimes:
		y.rate *= max(yieldTimes/times, 0.5)
		y.unfelt = false
		y.reads.forget()
		y.writes.forget()
	case y.unfelt:
		y.rate *= 2
	default:
		y.rate += y.rate / 16
	}
}
