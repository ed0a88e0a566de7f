package bitflips_test

import (
	"maps"
	"path"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

// TestAStepThatRotsIsNotLatest: too many chunks of a committed checkpoint are
// damaged on their disks. After a scrub has found them, the checkpoint is lost and
// the links name the one before. Reads of the earlier one continue.
func TestAStepThatRotsIsNotLatest(t *testing.T) {
	t.Run("one leader", func(t *testing.T) { stepRots(t, 1) })
	t.Run("the leader is killed before it has looked", func(t *testing.T) { stepRots(t, 3) })
}

func stepRots(t *testing.T, servers int) {
	inWorld(t, incluster.Options{Metadata: servers}, func(w *world) {
		require.NoError(t, w.admin.SaveSteps(w.ctx, "/r", 1, 2))
		attr, err := w.admin.Stat(w.ctx, "/r/attempt-1/step-2/rank-00000-of-00001.safetensors")
		require.NoError(t, err)
		resp, err := rawclient.Of(w.admin).Meta(w.ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: uint64(attr.Inode()), Limit: 10}}})
		require.NoError(t, err)
		s := resp.GetExtents().GetStripes()[0]
		hosts := map[uint32]string{}
		for _, h := range w.topology().GetTopology().GetHosts() {
			for _, d := range h.Devices {
				hosts[d.Id] = h.Id
			}
		}
		for n := range s.GetScheme().GetM() + 1 {
			w.rotOnDisk(hosts[s.Chunks[n].Device], moraine.ChunkID{Stripe: moraine.StripeID(s.Id), Index: uint8(n)})
		}
		// Chunks in memory are intact, and a repair would read those.
		w.Kill(slices.Collect(maps.Values(hosts))...)
		require.NoError(t, w.Restart())
		w.until("the chunkservers are there again", func() bool {
			_, err := w.admin.Stat(w.ctx, "/r/latest")
			return err == nil && w.readable("/r/attempt-1/step-1/"+ckpt.IndexName)
		})
		w.scrub()
		if servers > 1 {
			w.Kill(w.Leader())
		}
		run, err := w.admin.Stat(w.ctx, "/r")
		require.NoError(t, err)
		state := func() ckpt.StepState {
			steps, err := ckpt.ListSteps(w.ctx, w.admin.Client, run.Inode(), false)
			require.NoError(t, err)
			require.Len(t, steps, 2)
			return steps[1].State
		}
		w.until("the step is lost", func() bool { return state() == ckpt.StepLost })
		for _, link := range []string{"latest", "latest-memory", "latest-nvme"} {
			to, err := w.admin.Stat(w.ctx, path.Join("/r", link))
			require.NoError(t, err)
			want, err := w.admin.Stat(w.ctx, "/r/attempt-1/step-1")
			require.NoError(t, err)
			if to.IsSymlink() {
				require.Equal(t, "attempt-1/step-1", to.Target(), link)
			} else {
				require.Equal(t, want.Inode(), to.Inode(), link)
			}
		}
		reader, err := ckpt.OpenRun(w.ctx, w.admin.Client, "/r", ckpt.RunOptions{ReadOnly: true})
		require.NoError(t, err)
		k, err := reader.Resolve(w.ctx, ckpt.ResolveOptions{})
		require.NoError(t, err)
		require.EqualValues(t, 1, k.Info.Step)
		_, err = k.Verify(w.ctx)
		require.NoError(t, err)
		require.NoError(t, k.Close())
		_, err = reader.Resolve(w.ctx, ckpt.ResolveOptions{Step: 2, Exact: true})
		require.ErrorIs(t, err, moraine.Lost)
		require.NoError(t, reader.Close(w.ctx))
	})
}

// readable reports whether a file can be read from its beginning to its end.
func (w *world) readable(path string) bool {
	r, err := w.admin.OpenFile(w.ctx, path)
	if err != nil {
		return false
	}
	defer r.Close() //nolint:errcheck // it reads
	_, err = r.ReadAt(w.ctx, make([]byte, r.Size()), 0)
	return err == nil
}
