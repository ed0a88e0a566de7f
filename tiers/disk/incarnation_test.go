package disk_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/disk"
)

// The incarnation survives power cuts and failed writes: the old one or the new one
// is there. Damage is reported. Each sync is needed.
func TestTheIncarnationIsKept(t *testing.T) {
	old := moraine.MarkedIncarnation{Number: 2, Mark: moraine.UUID{2}}
	next := moraine.MarkedIncarnation{Number: 3, Mark: moraine.UUID{3, 15: 4}}
	base := vfs.NewMem(1)
	require.NoError(t, base.MkdirAll("/d"))
	require.NoError(t, base.SyncDir("/"))
	none, err := disk.ReadIncarnation(base, "/d")
	require.NoError(t, err)
	require.Zero(t, none)
	require.NoError(t, disk.WriteIncarnation(base, "/d", old))

	// cut writes under a rule, cuts the power, and reads.
	cut := func(seed uint64, rule vfs.Rule) (moraine.MarkedIncarnation, error, error) {
		mem := base.Clone()
		failed := disk.WriteIncarnation(vfs.NewFault(mem, rule), "/d", next)
		got, err := disk.ReadIncarnation(mem.Crash(rand.New(rand.NewPCG(seed, 1))), "/d")
		return got, failed, err
	}
	no := errors.New("no")
	for step, done := 1, false; !done; step++ {
		for seed := range uint64(20) {
			seen := 0
			got, failed, err := cut(seed, func(vfs.Op) error {
				if seen++; seen == step {
					return no
				}
				return nil
			})
			require.NoError(t, err, "step %d", step)
			if done = failed == nil; done {
				require.Equal(t, next, got)
			} else {
				require.Contains(t, []moraine.MarkedIncarnation{old, next}, got, "step %d", step)
			}
		}
	}
	for _, kind := range []vfs.OpKind{vfs.OpSync, vfs.OpSyncDir} {
		caught := false
		for seed := range uint64(60) {
			got, failed, err := cut(seed, func(op vfs.Op) error {
				if op.Kind == kind {
					return vfs.Drop
				}
				return nil
			})
			caught = caught || (failed == nil && (err != nil || got != next))
		}
		require.True(t, caught, "no cut showed that %v was left out", kind)
	}

	golden := "testdata/incarnation-v1.golden"
	require.NoError(t, disk.WriteIncarnation(base, "/d", next))
	f, err := base.Open("/d/incarnation", vfs.Read)
	require.NoError(t, err)
	p := make([]byte, 128)
	_, err = f.ReadAt(p, 0)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	if *update {
		require.NoError(t, os.WriteFile(golden, p, 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, p), "the format has changed")
	for at := range p {
		bad := bytes.Clone(p)
		bad[at] ^= 2
		w, err := base.Open("/d/incarnation", vfs.Write)
		require.NoError(t, err)
		_, err = w.WriteAt(bad, 0)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		_, err = disk.ReadIncarnation(base, "/d")
		require.Error(t, err, "byte %d", at)
	}
}
