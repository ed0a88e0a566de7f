package histories_test

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/state"
)

// Histories with clients that have exclusive leases, and answer creates before the
// service has heard of them. What such a client had made and not sent is not there
// for others once it could not be reached for the term of its leases: that is its
// promise (docs/SEMANTICS.md), and no order explains it. So nothing happens to the
// clients of these, and what happens to servers is over before the term is.

// exclusively is a history of that kind.
func exclusively(seed uint64, calm bool) options {
	return options{seed: seed, clients: 6, cached: 6, alone: 6, arenas: 3, lasts: 12 * time.Second, calm: calm, servers: !calm}
}

func TestExclusiveLeasesAreLinearizable(t *testing.T) {
	first := testseed.First(t)
	var made uint64
	var ops int
	for seed := first; seed < first+uint64(testseed.Runs(t, 4, 200)); seed++ {
		out := playOne(t, exclusively(seed, seed%2 == 0))
		made, ops = made+out.made, ops+out.ops
		r, at := out.h.verdict()
		if r == porcupine.Illegal {
			t.Fatalf("seed %d, arena %d: no order explains the answers; %d of %d files were lost; what went wrong: %v; see %s", seed, at, out.lost, out.made, out.did, out.h.show(t, at))
		}
		require.Equal(t, porcupine.Ok, r)
	}
	require.Positive(t, made, "of %d operations none was a file made under an exclusive lease", ops)
	t.Logf("%d operations, %d files made under exclusive leases", ops, made)
}

// holdsUnseen is the mutant of exclusive leases: a server whose reads do not see that
// somebody has one, and so do not wait for him.
type holdsUnseen struct{ metadata.Store }

// View implements metadata.Store.
func (s holdsUnseen) View(fn func(r state.Reader, applied uint64) error) error {
	return s.Store.View(func(r state.Reader, applied uint64) error { return fn(withoutHolds{r}, applied) })
}

type withoutHolds struct{ state.Reader }

// tabHold is the table of exclusive leases, as docs/formats/metadata-keys.md has it.
const tabHold = 0x15

func (r withoutHolds) Get(key []byte) ([]byte, bool, error) {
	if len(key) > 2 && key[2] == tabHold {
		return nil, false, nil
	}
	return r.Reader.Get(key)
}

// TestReadsThatDoNotWaitForTheHolderAreCaught holds the checker against servers whose
// reads do not wait for who has the exclusive lease.
func TestReadsThatDoNotWaitForTheHolderAreCaught(t *testing.T) {
	first, most := testseed.From(t, 1), uint64(testseed.Of(40, 200))
	for seed := first; seed < first+most; seed++ {
		o := exclusively(seed, true)
		o.store = func(_ string, s metadata.Store) metadata.Store { return holdsUnseen{s} }
		if r, _ := playOne(t, o).h.verdict(); r == porcupine.Illegal {
			t.Logf("found with seed %d, the %d. history", seed, seed-first+1)
			return
		}
	}
	t.Fatalf("nobody noticed, seeds %d to %d", first, first+most-1)
}
