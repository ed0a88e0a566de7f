package chunkserver

import (
	"math"
	"slices"
	"time"
)

const (
	// lineWait is the longest that a request stands in line, beside pauses: its sender takes
	// a server that does not answer for a dead one (after 10 s). Where so many wait that it
	// would be longer, all of them go more quickly, evenly.
	lineWait = 4 * time.Second
	// lineLook is how often one that waits looks whether it is its turn: others may have
	// made the line faster.
	lineLook = 250 * time.Millisecond
	// lineSoon is the least time that is reckoned with.
	lineSoon = 10 * time.Millisecond
)

// line lets requests go one after the other, at a rate of bytes and with nothing saved up:
// a burst after a pause is what others would feel. Not safe for concurrent use.
type line struct {
	places []*place // those of low priority behind the others
	credit float64  // bytes that may go; below 0: what went must be waited for
	at     time.Time
	paused time.Duration // in all, so far
	went   int64         // bytes, since it was asked last
}

// place is a request in line.
type place struct {
	bytes    int64
	deadline time.Time // by the line's clock, which stands still in a pause
	gone     bool      // it may go on
	low      bool      // of low priority
}

// clock is the time of the line.
func (l *line) clock() time.Time { return l.at.Add(-l.paused) }

// join puts a request, which has waited elsewhere before, behind the others of its priority.
func (l *line) join(bytes int, waited time.Duration, low bool) *place {
	p := &place{bytes: int64(bytes), deadline: l.clock().Add(lineWait - waited), low: low}
	at := len(l.places)
	if !low {
		if first := slices.IndexFunc(l.places, func(o *place) bool { return o.low }); first >= 0 {
			at = first
		}
	}
	l.places = slices.Insert(l.places, at, p)
	return p
}

// leave takes out a request that is not to go on, be it that it may by now.
func (l *line) leave(p *place) {
	if p.gone {
		l.credit += float64(p.bytes)
		return
	}
	l.places = slices.DeleteFunc(l.places, func(o *place) bool { return o == p })
}

// advance lets go who may go by now at so many bytes a second, nobody in a pause.
func (l *line) advance(now time.Time, rate float64, pause bool) {
	since := now.Sub(l.at)
	l.at = now
	if pause {
		l.paused += since
		return
	}
	l.credit = min(l.credit+l.pace(rate)*since.Seconds(), l.most())
	for len(l.places) > 0 && l.credit >= 0 {
		p := l.places[0]
		l.places = l.places[1:]
		p.gone = true
		l.credit -= float64(p.bytes)
		l.went += p.bytes
	}
	if len(l.places) == 0 {
		l.credit = min(l.credit, 0)
	}
}

// most is what can be used at once: all that stand in line.
func (l *line) most() (bytes float64) {
	for _, p := range l.places {
		bytes += float64(p.bytes)
	}
	return bytes
}

// pace is the rate at which nobody in line waits for longer than is allowed.
func (l *line) pace(rate float64) float64 {
	ahead, now := -l.credit, l.clock()
	for _, p := range l.places {
		left := max(p.deadline.Sub(now), lineSoon)
		rate = max(rate, ahead/left.Seconds())
		ahead += float64(p.bytes)
	}
	return rate
}

// wait is after what time a request that waits is to look again.
func (l *line) wait(p *place, rate float64) time.Duration {
	ahead := -l.credit
	for _, o := range l.places {
		if o == p {
			break
		}
		ahead += float64(o.bytes)
	}
	seconds := ahead / l.pace(rate)
	return min(max(time.Duration(math.Ceil(seconds*1e9)), time.Millisecond), lineLook)
}
