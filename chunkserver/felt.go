package chunkserver

import (
	"slices"
	"time"
)

const (
	// feltLeast is how many requests of a kind there must be to judge by; where a round has
	// fewer, those of the next ones are added to them.
	feltLeast = 8
	// feltMost bounds what is kept of a round.
	feltMost = 4096
	// Which the slow ones of a single round are is mostly chance: so many of the latest are
	// taken together as have feltRequests, feltRounds at most. One is not gone by, nor are
	// fewer requests than half, as long as others may come.
	feltRequests, feltRounds = 200, 8
)

// felt is what clients feel of repairs, by one kind of requests: the time that the slow
// ones of them (the slowest twentieth) take, in the last rounds with repairs and in the last
// ones without. The kinds are judged each for itself, as else the quick kind might take many
// times as long before it is as slow as the slow one.
type felt struct {
	took []time.Duration          // in this round
	held map[bool][]time.Duration // in rounds before it that had too few: with repairs, and without
	calm [][]time.Duration        // in rounds without repairs, the latest last
	busy [][]time.Duration        // in rounds with repairs
}

func (f *felt) note(took time.Duration) {
	if len(f.took) < feltMost {
		f.took = append(f.took, took)
	}
}

// gather returns what was taken in this round, a quiet one or not, and in those before it
// that had too few; nil while these are too few.
func (f *felt) gather(quiet bool) (enough []time.Duration) {
	took := append(f.held[quiet], f.took...)
	if len(took) < feltLeast {
		f.hold(quiet, took)
		return nil
	}
	f.hold(quiet, nil)
	return took
}

func (f *felt) hold(quiet bool, took []time.Duration) {
	if f.held == nil {
		f.held = map[bool][]time.Duration{}
	}
	f.held[quiet] = took
}

// known reports whether it is known what requests take without repairs.
func (f *felt) known() bool { return len(f.calm) > 0 }

// learn takes this round for one without repairs, and reports whether it was enough to
// learn from.
func (f *felt) learn() bool {
	took := f.gather(true)
	if took == nil {
		return false
	}
	f.calm = latest(f.calm, took)
	return true
}

// times takes this round for one with repairs, and returns how many times as long as
// without repairs the slow requests take; 0: there is not enough to go by.
func (f *felt) times() float64 {
	took := f.gather(false)
	if took == nil || !f.known() {
		return 0
	}
	f.busy = latest(f.busy, took)
	if n := len(f.busy); n < 2 || n < feltRounds && count(f.busy) < feltRequests/2 {
		return 0
	}
	return float64(slowOf(f.busy)) / float64(max(slowOf(f.calm), 1))
}

// forget drops the rounds with repairs: they were with more than there is from now on.
func (f *felt) forget() {
	f.busy = nil
	f.hold(false, nil)
}

// end ends a round.
func (f *felt) end() { f.took = nil }

// latest returns the last ones of rounds and one more.
func latest(rounds [][]time.Duration, one []time.Duration) [][]time.Duration {
	rounds = append(rounds, one)
	for len(rounds) > feltRounds || len(rounds) > 2 && count(rounds[1:]) >= feltRequests {
		rounds = rounds[1:]
	}
	return rounds
}

func count(rounds [][]time.Duration) (n int) {
	for _, r := range rounds {
		n += len(r)
	}
	return n
}

// slowOf returns what all but the slowest twentieth stayed below.
func slowOf(rounds [][]time.Duration) time.Duration {
	all := slices.Concat(rounds...)
	slices.Sort(all)
	return all[len(all)*19/20]
}
