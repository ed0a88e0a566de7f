package integration_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// removalDoors are the ways to remove a checkpoint: `ckpt rm`, `rm -r` of its
// directory on a command line, and file by file. `rm -r` on a mount and the
// deletion of a prefix through S3 go file by file.
var removalDoors = map[string]func(ctx context.Context, c *incluster.Client, run uint64, step uint64) error{
	"ckpt rm": func(ctx context.Context, c *incluster.Client, run uint64, step uint64) error {
		_, err := rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_RemoveStep{RemoveStep: &wire.RemoveStep{
			Key: &wire.StepKey{Run: run, Attempt: 1, Step: step}}}})
		return err
	},
	"rm -r": func(ctx context.Context, c *incluster.Client, _ uint64, step uint64) error {
		return c.RemoveAllWith(ctx, stepDir(step), client.RemoveAllOptions{Checkpoints: true})
	},
	"file by file": func(ctx context.Context, c *incluster.Client, _ uint64, step uint64) error {
		names, err := entries(ctx, c, stepDir(step))
		for _, name := range names {
			if err == nil {
				err = c.Remove(ctx, path.Join(stepDir(step), name))
			}
		}
		return err
	},
}

// stepFiles is the number of files of such a checkpoint: the index, and two of each
// rank.
const stepFiles = 1 + 2*stepWorld

func stepDir(step uint64) string { return fmt.Sprintf("%s/attempt-1/step-%d", stepRun, step) }

// entries are the names in a directory.
func entries(ctx context.Context, c *incluster.Client, dir string) (names []string, err error) {
	a, err := c.Stat(ctx, dir)
	if err != nil {
		return nil, err
	}
	resp, err := rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: uint64(a.Inode()), Limit: 1000}}})
	for _, e := range resp.GetReadDir().GetEntries() {
		names = append(names, e.Name)
	}
	return names, err
}

// TestARemovalThatIsCutShort removes a checkpoint in every way. In the middle of
// it, it kills the process that removes (a gateway, a mount, a command) or the
// metadata leader. In the end the checkpoint is whole or gone. The list, `latest`,
// the verification and the directories agree, and no chunk of a removed checkpoint
// stays on a device.
func TestARemovalThatIsCutShort(t *testing.T) {
	seed := testseed.First(t)
	row := seed
	for _, door := range slices.Sorted(maps.Keys(removalDoors)) {
		remove := removalDoors[door]
		for _, victim := range []string{"client", "leader"} {
			if row++; row%3 != 0 && !testseed.Long() {
				continue // the short form runs two of the six, by the seed
			}
			t.Run(door+"/"+victim, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newRemovals(t, seed)
					for step := uint64(testseed.Of(2, 12)); step > 1; step-- {
						r.cutShort(step, victim, remove)
						r.agree()
					}
					r.end()
				})
			})
		}
	}
}

// sweptAfter is when nothing is left of a removed checkpoint: the session of a killed
// client ends after 20 s, and the files are swept a minute after the last deletion.
const sweptAfter = 2 * time.Minute

// removals is a cluster with a run, whose checkpoints are removed.
type removals struct {
	*incluster.Cluster
	t     *testing.T
	ctx   context.Context
	rng   *rand.Rand
	run   uint64
	saved map[uint64]savedStep
	gone  map[uint64]bool // by the answer of a removal
	made  int             // number of clients
}

func newRemovals(t *testing.T, seed uint64) *removals {
	t.Helper()
	c, err := incluster.Start(t.Context(), incluster.Options{Seed: seed, Chunkservers: 3, Grace: 5 * time.Second, SessionTimeout: 20 * time.Second,
		SnapshotEntries: 5000, MemTableBytes: 4 << 20})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Stop()) })
	require.NoError(t, c.WaitReady(t.Context()))
	r := &removals{Cluster: c, t: t, ctx: context.Background(), rng: rand.New(rand.NewPCG(seed, 7)), saved: map[uint64]savedStep{}, gone: map[uint64]bool{}}
	var runs []*ckpt.Run
	for rank := range uint32(stepWorld) {
		cl, err := c.Client(t.Context(), fmt.Sprintf("trainer%d", rank))
		require.NoError(t, err)
		defer cl.Close() //nolint:errcheck // what it saved is checked
		run, err := ckpt.OpenRun(t.Context(), cl.Client, stepRun, ckpt.RunOptions{Launch: ckpt.Launch{Name: "one"}, Rank: rank, World: stepWorld})
		require.NoError(t, err)
		defer run.Close(t.Context()) //nolint:errcheck // each save is waited for
		runs = append(runs, run)
	}
	for step := range uint64(testseed.Of(3, 12)) {
		s := savedStep{step: step + 1, seed: r.rng.Uint64(), size: 20_000}
		var g sync.WaitGroup
		for rank, run := range runs {
			g.Go(func() { require.NoError(t, s.saveRank(t.Context(), run, rank)) })
		}
		g.Wait()
		r.saved[s.step] = s
	}
	return r
}

// client is a new one.
func (r *removals) client() *incluster.Client {
	r.t.Helper()
	r.made++
	c, err := r.Client(r.ctx, fmt.Sprintf("remover%d", r.made))
	require.NoError(r.t, err)
	return c
}

// cutShort removes a checkpoint, and kills a victim some milliseconds after the
// start.
func (r *removals) cutShort(step uint64, victim string, remove func(ctx context.Context, c *incluster.Client, run, step uint64) error) {
	r.t.Helper()
	c := r.client()
	a, err := c.Stat(r.ctx, stepRun)
	require.NoError(r.t, err)
	r.run = uint64(a.Inode())
	ended := make(chan error, 1)
	go func() { ended <- remove(r.ctx, c, r.run, step) }()
	time.Sleep(time.Duration(r.rng.IntN(40_000)) * time.Microsecond)
	if victim == "client" {
		c.Kill()
		r.gone[step] = <-ended == nil
	} else {
		leader := r.Leader()
		r.Kill(leader)
		r.gone[step] = <-ended == nil
		require.NoError(r.t, r.Restart(leader))
		c.Kill()
	}
	require.NoError(r.t, r.WaitReady(r.ctx))
	time.Sleep(sweptAfter)
}

// agree compares everything that is reported about the checkpoints.
func (r *removals) agree() {
	r.t.Helper()
	c := r.client()
	defer c.Close() //nolint:errcheck // it reads
	steps, err := ckpt.ListSteps(r.ctx, c.Client, moraine.InodeID(r.run), false)
	require.NoError(r.t, err)
	listed, newest := map[uint64]bool{}, uint64(0)
	for _, s := range steps {
		listed[s.Step] = true
		newest = max(newest, s.Step)
	}
	run, err := ckpt.OpenRun(r.ctx, c.Client, stepRun, ckpt.RunOptions{ReadOnly: true})
	require.NoError(r.t, err)
	defer run.Close(r.ctx) //nolint:errcheck // it reads
	var dirs []string
	for step, s := range r.saved {
		k, err := run.Resolve(r.ctx, ckpt.ResolveOptions{Step: step, Exact: true})
		names, dirErr := entries(r.ctx, c, stepDir(step))
		if !listed[step] {
			require.ErrorIs(r.t, err, moraine.NotFound, "step %d", step)
			require.ErrorIs(r.t, dirErr, moraine.NotFound, "step %d is not listed, and has %v", step, names)
			continue
		}
		require.False(r.t, r.gone[step], "step %d is listed after its removal was answered", step)
		require.NoError(r.t, err, "step %d", step)
		require.NoError(r.t, dirErr, "step %d", step)
		require.Len(r.t, names, stepFiles, "step %d", step)
		_, err = k.Verify(r.ctx)
		require.NoError(r.t, err, "step %d", step)
		for rank := range stepWorld {
			b, err := k.ReadBlob(r.ctx, uint32(rank), "rng")
			require.NoError(r.t, err)
			require.Equal(r.t, s.bytes(rank, 100), b)
		}
		require.NoError(r.t, k.Close())
		dirs = append(dirs, path.Base(stepDir(step)))
	}
	have, err := entries(r.ctx, c, path.Dir(stepDir(1)))
	require.NoError(r.t, err)
	require.ElementsMatch(r.t, dirs, have, "the directories of an attempt")
	latest, err := entries(r.ctx, c, stepRun+"/latest")
	require.NoError(r.t, err, "latest dangles")
	require.Len(r.t, latest, stepFiles)
	k, err := run.Resolve(r.ctx, ckpt.ResolveOptions{})
	require.NoError(r.t, err)
	require.Equal(r.t, newest, k.Info.Step)
	require.NoError(r.t, k.Close())
}

// end removes the rest, and checks that no chunk stays on any device.
func (r *removals) end() {
	r.t.Helper()
	c := r.client()
	defer c.Close() //nolint:errcheck
	for step := range r.saved {
		_, err := rawclient.Of(c).Meta(r.ctx, &wire.MetaRequest{Op: &wire.MetaRequest_RemoveStep{RemoveStep: &wire.RemoveStep{
			Key: &wire.StepKey{Run: r.run, Attempt: 1, Step: step}, Force: true}}})
		if err != nil {
			require.ErrorIs(r.t, err, moraine.NotFound)
		}
	}
	time.Sleep(sweptAfter)
	d := r.Dialer(transport.RoleAdmin, "lister")
	defer d.Close()
	resp, err := rawclient.Of(c).Meta(r.ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetTopology{GetTopology: &wire.GetTopology{}}})
	require.NoError(r.t, err)
	for _, h := range resp.GetTopology().GetHosts() {
		for _, dev := range h.Devices {
			reply, err := d.Chunks(h.Id, h.Addresses).Stat(r.ctx, &wire.StatDevices{List: &wire.ListChunks{Device: dev.Id, Limit: 4096}})
			require.NoError(r.t, err)
			require.Empty(r.t, reply.GetListed().GetChunks(), "chunks of removed checkpoints stay on device %d", dev.Id)
		}
	}
	require.NoError(r.t, r.Check())
}
