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
	// yieldProbe is after how many rounds with repairs one without is made, to learn
	// anew how quick requests are by themselves.
	yieldProbe = 30
	// yieldPause is how many rounds that takes at most: repairs wait meanwhile.
	yieldPause = 3
	// yieldAway is after how many rounds without a request of theirs clients are away: who
	// asks again after that comes back.
	yieldAway = 10
)

// yielder gives repairs as much as clients do not feel. Each second it holds the
// time that the slow ones (the slowest twentieth) of the clients' requests took
// against what it is without repairs: where it is half as much again, repairs get
// less by as much, half at least, else a sixteenth more. They go one after the other.
type yielder struct {
	most float64 // bytes a second

	mu     sync.Mutex // guards what follows
	rate   float64
	line   line
	began  time.Time // of this round
	asked  int       // requests of clients in this round
	reads  felt
	writes felt
	round  int  // since it was learned what requests take without repairs
	paused int  // rounds for which repairs have been waiting for that
	calm   bool // the round before was without repairs
	idle   int  // rounds since clients asked
	unfelt bool // no client has felt these repairs so far
}

func newYielder(most int64, now time.Time) *yielder {
	return &yielder{most: float64(most), rate: float64(most), began: now, line: line{at: now}, unfelt: true, idle: yieldAway}
}

// background puts a repair's request in line that has waited for other things already. ahead
// must follow, until the request may go on or is given up. One of low priority goes behind
// all that are not.
func (y *yielder) background(now time.Time, bytes int, waited time.Duration, low bool) *place {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.turn(now)
	y.advance(now)
	return y.line.join(bytes, waited, low)
}

// ahead returns after what time a request in line is to ask again, 0 when it may go on.
func (y *yielder) ahead(now time.Time, p *place) time.Duration {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.turn(now)
	y.advance(now)
	switch {
	case p.gone:
		return 0
	case y.pausing():
		return lineLook
	}
	return y.line.wait(p, y.rate)
}

// gaveUp takes out of the line a request that does not go on.
func (y *yielder) gaveUp(p *place) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.line.leave(p)
}

// advance lets go who may. The caller holds mu.
func (y *yielder) advance(now time.Time) { y.line.advance(now, y.rate, y.pausing()) }

// pausing reports whether this round is to be without repairs. The caller holds mu.
func (y *yielder) pausing() bool { return y.round >= yieldProbe }

// foreground notes a client's request.
func (y *yielder) foreground(now time.Time, write bool, took time.Duration) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.turn(now)
	y.asked++
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
	y.advance(now)
	repaired := y.line.went > 0
	switch {
	case y.asked == 0 && y.idle >= yieldAway: // nobody is there to mind
		y.rate *= 2
		y.round, y.paused = 0, 0
	case y.asked == 0:
	case repaired:
		y.round++
		y.adapt()
	case y.calm:
		y.learn()
	default: // what began before still has its effect
	}
	if y.asked == 0 {
		y.idle++
	} else {
		if y.idle >= yieldAway {
			y.begin()
		}
		y.idle = 0
	}
	if y.pausing() {
		y.paused++
	}
	if y.paused > yieldPause {
		y.round, y.paused = 0, 0
	}
	y.rate = max(min(y.rate, y.most), min(yieldFloor, y.most))
	y.reads.end()
	y.writes.end()
	y.began, y.calm, y.asked, y.line.went = now, !repaired, 0, 0
}

// begin has repairs begin anew, gently. The caller holds mu.
func (y *yielder) begin() {
	y.start()
	if !y.reads.known() && !y.writes.known() {
		y.round = yieldProbe
	}
}

// start is how repairs begin. The caller holds mu.
func (y *yielder) start() {
	y.rate, y.unfelt = min(y.rate, yieldStart), true
	y.reads.forget()
	y.writes.forget()
}

// learn takes what requests took in a round without repairs. The caller holds mu.
func (y *yielder) learn() {
	if !y.pausing() && len(y.line.places) == 0 { // nothing is repaired
		y.start()
	}
	reads, writes := y.reads.learn(), y.writes.learn()
	if reads || writes {
		y.round, y.paused = 0, 0
	}
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
