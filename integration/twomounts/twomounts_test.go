// Package twomounts_test compares two mounts of one cluster with a directory on ext4.
// A seed gives a list of steps. Each step makes the same system calls on one of the
// mounts and on ext4. Both must give the same: errno, counts, bytes, attributes, names
// and locks.
//
// A child process makes the calls (child_test.go): it can change its user and map
// files, and it can be killed. shrink_test.go removes steps from a list that
// fails, while it still fails. step_test.go makes the steps, world_test.go carries
// them out, and calls*_test.go have the calls.
package twomounts_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/testseed"
)

// Two mounts do what one directory on ext4 does.
func TestTwoMountsEqualADirectoryOnExt4(t *testing.T) {
	b := newBench(t)
	// A new difference is for the long form to find: the short one repeats seeds that pass.
	first, n := testseed.From(t, 9000), testseed.Runs(t, 4, 200)
	if testseed.Long() {
		first = testseed.First(t)
	}
	for seed := first; seed < first+uint64(n); seed++ {
		r := run{bench: b, seed: seed, steps: testseed.Of(250, 400)}
		if said, ok := r.try(nil); !ok {
			t.Fatalf("MORAINE_TEST_SEED=%d MORAINE_TEST_RUNS=1 repeats it.\n%s\n%s", seed, said, r.shrink(said))
		}
		b.requireEmpty(t)
		if seed%20 == 0 || seed == first+uint64(n)-1 {
			b.check(t)
		}
	}
	directories, changes := b.delegations(t)
	if n >= 20 {
		require.NotZero(t, changes, "no seed has changed a delegated directory")
	}
	t.Logf("seeds %d to %d; %v delegated directories with %v changes", first, first+uint64(n)-1, directories, changes)
}

// requireEmpty requires that a seed has left nothing behind. Files that were open are
// freed a moment after their close.
func (b *bench) requireEmpty(t *testing.T) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		u, err := b.admin.Quotas().Usage(t.Context(), moraine.RootInode)
		require.NoError(c, err)
		require.Zero(c, u.Usage.Bytes)
		require.LessOrEqual(c, u.Usage.Inodes, uint64(1))
	}, time.Minute, 10*time.Millisecond)
}
