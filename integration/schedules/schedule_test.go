package schedules_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// kind is a kind of fault.
type kind string

const (
	kills       kind = "kill"         // -9, and a restart later
	stops       kind = "stop"         // SIGSTOP, past the target's leases
	partitions  kind = "partition"    // of one host from all, one way, or of two from each other
	slowDisks   kind = "slow disk"    // every call to it waits
	fullDisks   kind = "full disk"    // of a chunkserver: no byte is free
	bitFlips    kind = "bit flip"     // in records of a segment
	lostReplies kind = "lost replies" // requests arrive and are served, and the answer is cut off
)

// allKinds are the kinds of faults, in the order in which a seed draws them.
var allKinds = []kind{kills, stops, partitions, slowDisks, fullDisks, bitFlips, lostReplies}

// The targets. leader is the metadata server that leads at the time.
var (
	metadataServers = []string{"m1", "m2", "m3"}
	chunkservers    = []string{"n1", "n2", "n3", "n4", "n5"}
	clients         = []string{"c1", "c2", "c3", "c4", "c5"}
	bucket          = "o1"
)

const (
	leader = "leader"
	// Bits flip only on one host, so that every stripe keeps the protection that
	// even a degraded commit has: a schedule may never destroy more than that.
	rotting = "n3"
	// These two have disks of their own that can be made slow, and full.
	slowed = "n1"
	filled = "n2"
)

// fault is one fault, from At on, for For.
type fault struct {
	At, For time.Duration
	Kind    kind
	Target  string
	Other   string // of a partition: from which; "": from all; mute: it receives and cannot send
}

const mute = "mute"

func (f fault) end() time.Duration { return f.At + f.For }

func (f fault) String() string {
	s := fmt.Sprintf("%s of %s", f.Kind, f.Target)
	if f.Other != "" {
		s += " (" + f.Other + ")"
	}
	return fmt.Sprintf("%s at %.1fs for %.1fs", s, f.At.Seconds(), f.For.Seconds())
}

// shape says how long a schedule is and what it must contain.
type shape struct {
	lasts  time.Duration
	faults int
	kinds  int
	reads  int // that are checked
	only   []kind
}

var (
	longShape  = shape{lasts: 46 * time.Second, faults: 5, kinds: 3, reads: 1000, only: allKinds}
	shortShape = shape{lasts: 15 * time.Second, faults: 3, kinds: 2, reads: 200, only: allKinds}
)

// plan draws a schedule. It depends only on the seed and the shape. Two of three
// have faults that overlap; overlapping ones have different targets.
func plan(seed uint64, s shape) []fault {
	rng := rand.New(rand.NewPCG(seed, 1))
	overlapping := seed%3 != 2
	n := s.faults + 2 + rng.IntN(3)
	pause := s.lasts / time.Duration(n+1)
	kinds := slices.Clone(s.only)
	rng.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	var faults []fault
	at := 2 * time.Second // there is data to damage by then
	for i := 0; len(faults) < n && i < 4*n; i++ {
		f := draw(rng, kinds[i%len(kinds)])
		f.For = min(f.For, s.lasts*2/5)
		f.At = at
		if !clash(faults, f) {
			faults = append(faults, f)
		}
		at += pause
		if overlapping && i%2 == 0 {
			at = f.At + min(f.For/3, pause) // the next one falls into it
		}
		if at > s.lasts-2*time.Second {
			at = time.Second + time.Duration(rng.Int64N(int64(s.lasts-4*time.Second)))
		}
	}
	slices.SortStableFunc(faults, func(a, b fault) int { return cmp.Compare(a.At, b.At) })
	return faults
}

// clash reports whether a fault overlaps another one of the same target.
func clash(faults []fault, f fault) bool {
	return slices.ContainsFunc(faults, func(g fault) bool {
		return g.Target == f.Target && g.At < f.end() && f.At < g.end()
	})
}

// overlaps counts the pairs of faults that overlap.
func overlaps(faults []fault) (n int) {
	for i, f := range faults {
		for _, g := range faults[:i] {
			if g.At < f.end() && f.At < g.end() {
				n++
			}
		}
	}
	return n
}

// draw draws a fault of a kind. A stop lasts longer than the target's leases: a
// leader's last half a second, a client's session 5 s, a mover's jobs 15 s.
func draw(rng *rand.Rand, k kind) fault {
	pick := func(from ...string) string { return from[rng.IntN(len(from))] }
	between := func(from, to time.Duration) time.Duration { return from + time.Duration(rng.Int64N(int64(to-from))) }
	f := fault{Kind: k, For: between(1500*time.Millisecond, 6*time.Second)}
	switch k {
	case kills:
		f.Target = pick(leader, pick(metadataServers...), pick(chunkservers...), pick(chunkservers...), pick(clients...), bucket)
	case stops:
		switch rng.IntN(5) {
		case 0:
			f.Target = leader
		case 4:
			f.Target = bucket
		case 1: // and the mover in it
			f.Target, f.For = pick(chunkservers...), between(16*time.Second, 18*time.Second)
		case 2:
			f.Target = pick(chunkservers...)
		default:
			f.Target, f.For = pick(clients...), between(6*time.Second, 9*time.Second)
		}
	case partitions:
		f.Target = pick(leader, pick(metadataServers...), pick(chunkservers...), pick(clients...), bucket)
		switch rng.IntN(3) {
		case 0:
			f.Other = mute
		case 1:
			f.Other = pick(metadataServers...)
		}
		if f.Other == f.Target || f.Target == leader {
			f.Other = ""
		}
	case slowDisks:
		f.Target, f.For = slowed, between(4*time.Second, 9*time.Second)
	case fullDisks:
		f.Target, f.For = filled, between(4*time.Second, 9*time.Second)
	case bitFlips:
		f.Target, f.For = rotting, between(time.Second, 2*time.Second)
	case lostReplies:
		f.Target = pick(leader, pick(metadataServers...), pick(chunkservers...))
	}
	return f
}

// A plan follows from its seed, is long enough, and names existing targets. For any
// seeds, faults overlap in at least a third of the plans.
func TestPlan(t *testing.T) {
	targets := slices.Concat([]string{leader, bucket}, metadataServers, chunkservers, clients)
	for _, s := range []shape{longShape, shortShape} {
		overlapping, drawn := 0, map[kind]int{}
		const seeds = 300
		for seed := range uint64(seeds) {
			p := plan(seed, s)
			if again := plan(seed, s); !slices.Equal(p, again) {
				t.Fatalf("seed %d: %v, and then %v", seed, p, again)
			}
			if len(p) < s.faults {
				t.Errorf("seed %d: %d faults: %v", seed, len(p), p)
			}
			has := map[kind]bool{}
			for _, f := range p {
				has[f.Kind] = true
				drawn[f.Kind]++
				if !slices.Contains(targets, f.Target) || f.For <= 0 || f.At < 0 || f.At > s.lasts {
					t.Errorf("seed %d: %v", seed, f)
				}
			}
			if len(has) < s.kinds {
				t.Errorf("seed %d has %d kinds: %v", seed, len(has), p)
			}
			if overlaps(p) > 0 {
				overlapping++
			}
		}
		if overlapping < seeds/2 {
			t.Errorf("%d of %d plans have faults that overlap", overlapping, seeds)
		}
		for _, k := range allKinds {
			if drawn[k] < seeds/4 {
				t.Errorf("%s was drawn %d times in %d plans", k, drawn[k], seeds)
			}
		}
	}
}
