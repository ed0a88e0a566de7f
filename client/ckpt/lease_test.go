package ckpt_test

import (
	"context"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
)

// TestAnOpenCheckpointIsLeased: from Resolve to Close no client can remove it.
func TestAnOpenCheckpointIsLeased(t *testing.T) {
	f, m := newFake(), makeModel(1)
	save(t, f, m, 1, 1)
	r := openRun(t, f, 0, 1)
	one, err := r.Resolve(t.Context(), ckpt.ResolveOptions{})
	require.NoError(t, err)
	other, err := r.Resolve(t.Context(), ckpt.ResolveOptions{})
	require.NoError(t, err)
	require.Equal(t, 2, f.leases[1])
	require.NoError(t, one.Close())
	require.NoError(t, one.Close())
	require.Equal(t, 1, f.leases[1])
	require.NoError(t, other.Close())
	require.Zero(t, f.leases[1])

	// A checkpoint that cannot be opened does not stay leased.
	f.corrupt(one.Info.Dir, ckpt.IndexName, len(f.files[f.dirs[uint64(one.Info.Dir)][ckpt.IndexName]])-1)
	_, err = r.Resolve(t.Context(), ckpt.ResolveOptions{})
	require.ErrorIs(t, err, moraine.Corrupt)
	require.Zero(t, f.leases[1])
}

// TestALateCloseEndsNoLeaseOfALaterSession: a checkpoint stays open beyond its session. Its Close
// must not end the lease on the same step that the client took in its next session.
func TestALateCloseEndsNoLeaseOfALaterSession(t *testing.T) {
	inCluster(t, memcluster.Options{}, func(t *testing.T, c *memcluster.Cluster) {
		saveAll(t, team(t, c, "job", 1), 1, 1)
		cl, remover := c.Client("reader"), c.Client("remover")
		defer cl.Close()
		defer remover.Close()
		r, err := ckpt.OpenRun(t.Context(), cl, "/runs/deep/a", ckpt.RunOptions{ReadOnly: true, World: 1})
		require.NoError(t, err)
		early, err := r.Resolve(t.Context(), ckpt.ResolveOptions{})
		require.NoError(t, err)
		first := cl.Session()
		_, err = rawclient.Of(cl).Meta(t.Context(), &wire.MetaRequest{Op: &wire.MetaRequest_CloseSession{CloseSession: &wire.CloseSession{}}})
		require.NoError(t, err)
		late, err := r.Resolve(t.Context(), ckpt.ResolveOptions{})
		require.NoError(t, err)
		require.NotEqual(t, first, cl.Session())

		require.NoError(t, early.Close())
		remove := func() error {
			_, err := rawclient.Of(remover).Meta(t.Context(), &wire.MetaRequest{Op: &wire.MetaRequest_RemoveStep{RemoveStep: &wire.RemoveStep{
				Key: &wire.StepKey{Run: uint64(late.Info.Run), Attempt: late.Info.Attempt, Step: late.Info.Step}, Force: true}}})
			return err
		}
		require.ErrorIs(t, remove(), moraine.Busy)
		require.NoError(t, late.Close())
		require.NoError(t, remove())
	})
}

// TestRestorableFallsBackToTheNewestGoodStep: of four steps the last has a damaged part,
// the one before a damaged index.
func TestRestorableFallsBackToTheNewestGoodStep(t *testing.T) {
	f, m := newFake(), makeModel(1)
	var infos []ckpt.StepInfo
	for step := range uint64(4) {
		infos = append(infos, save(t, f, m, step+1, 1))
	}
	f.corrupt(infos[3].Dir, "rank-00000-of-00001.safetensors", 5000)
	f.corrupt(infos[2].Dir, ckpt.IndexName, len(f.files[f.dirs[uint64(infos[2].Dir)][ckpt.IndexName]])-1)
	r := openRun(t, f, 0, 1)
	verify := func(k *ckpt.Checkpoint) error { _, err := k.Verify(context.Background()); return err }
	var passed []uint64
	k, err := r.Restorable(t.Context(), ckpt.ResolveOptions{}, verify, func(s ckpt.StepInfo, err error) {
		require.ErrorIs(t, err, moraine.Corrupt)
		passed = append(passed, s.Step)
	})
	require.NoError(t, err)
	require.Equal(t, uint64(2), k.Info.Step)
	require.Equal(t, []uint64{4, 3}, passed)
	require.Equal(t, map[uint64]int{4: 0, 2: 1}, f.held(2, 4))
	require.NoError(t, k.Close())

	// An error that is no damage ends it, and so does the end of the branch.
	_, err = r.Restorable(t.Context(), ckpt.ResolveOptions{}, func(*ckpt.Checkpoint) error { return moraine.NoSpace }, nil)
	require.ErrorIs(t, err, moraine.NoSpace)
	_, err = r.Restorable(t.Context(), ckpt.ResolveOptions{}, func(*ckpt.Checkpoint) error { return moraine.Lost }, nil)
	require.ErrorIs(t, err, moraine.NotFound)
	_, err = r.Restorable(t.Context(), ckpt.ResolveOptions{Fix: true}, verify, nil)
	require.ErrorIs(t, err, moraine.InvalidArgument)
}

// held returns how many leases some steps have.
func (f *fakeCluster) held(steps ...uint64) map[uint64]int {
	out := map[uint64]int{}
	for _, s := range steps {
		out[s] = f.leases[s]
	}
	return out
}
