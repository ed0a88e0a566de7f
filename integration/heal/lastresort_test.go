package heal_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/transport/wire"
)

// writeOne makes a file of one stripe.
func (w *world) writeOne(name string, scheme moraine.Scheme) {
	w.t.Helper()
	data := make([]byte, 60_000)
	rng := rand.NewChaCha8([32]byte{byte(len(w.files)), 9})
	_, _ = rng.Read(data)
	f, err := w.admin.Create(w.ctx, name, client.CreateOptions{Scheme: scheme})
	require.NoError(w.t, err)
	_, err = f.Write(data)
	require.NoError(w.t, err)
	_, err = f.Commit(w.ctx)
	require.NoError(w.t, err)
	w.files[name] = data
}

// stripe is the record of a file's only stripe.
func (w *world) stripe(name string) *wire.Stripe {
	w.t.Helper()
	a, err := w.admin.Stat(w.ctx, name)
	require.NoError(w.t, err)
	s := w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: uint64(a.Inode()), Limit: 10}}}).GetExtents().Stripes
	require.Len(w.t, s, 1)
	return s[0]
}

// hostOf is the host of a device.
func (w *world) hostOf(device uint32) string {
	w.t.Helper()
	for _, h := range w.cluster().GetTopology().GetHosts() {
		for _, d := range h.Devices {
			if d.Id == device {
				return h.Id
			}
		}
	}
	w.t.Fatalf("no device %d", device)
	return ""
}

// rotChunk flips a bit of a chunk that its server then does not have in memory.
func (w *world) rotChunk(s *wire.Stripe, index int) {
	w.t.Helper()
	node := w.hostOf(s.Chunks[index].Device)
	id := moraine.ChunkID{Stripe: moraine.StripeID(s.Id), Index: uint8(index)}
	recs := w.records(node)
	at := slices.IndexFunc(recs, func(r record) bool { return r.Header.ID == id })
	require.GreaterOrEqual(w.t, at, 0, "%s has no %s", node, id)
	w.StopNode(node)
	w.rot(node, recs[at])
	require.NoError(w.t, w.Restart(node))
	require.NoError(w.t, w.WaitReady(w.ctx))
	time.Sleep(3 * time.Second)
}

// tries is how many repairs have failed so far.
func (w *world) tries() (n int) {
	w.t.Helper()
	for _, j := range w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{Limit: 1000, Ended: true}}}).GetJobs().GetJobs() {
		if j.Kind == wire.JobKind_JOB_KIND_REPAIR && j.State == wire.JobState_JOB_STATE_FAILED {
			n++
		}
	}
	return n
}

func (w *world) scrub(host string) {
	w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_StartScrub{StartScrub: &wire.StartScrub{Host: host}}})
}

// TestLastCopyIsOnADeviceThatIsOut: of two copies one is on a device that a person
// took out while its server runs, and the other one is damaged. Both are rebuilt
// from the copy on the device that is out.
func TestLastCopyIsOnADeviceThatIsOut(t *testing.T) {
	inWorld(t, incluster.Options{Chunkservers: 2}, func(w *world) { // so that nothing is copied before
		w.writeOne("/f", moraine.Copies(2))
		s := w.stripe("/f")
		out := s.Chunks[0].Device
		w.rotChunk(s, 1)
		w.setDevice(out, wire.DeviceState_DEVICE_STATE_OUT)
		w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_ReportBadChunks{ReportBadChunks: &wire.ReportBadChunks{Chunks: []*wire.BadChunk{
			{Stripe: s.Id, Index: 1, Device: s.Chunks[1].Device, Version: s.Version, Kind: uint32(moraine.Corrupt)}}}}})
		w.until("it can be read from the device that is in", func() bool { return w.stripe("/f").Version > s.Version && w.cluster().LostStripes == 0 })
		_, err := w.AddChunkserver()
		require.NoError(t, err)
		w.sound()
		now := w.stripe("/f")
		require.NotEqual(t, out, now.Chunks[0].Device)
		w.readAll()
		time.Sleep(2 * time.Minute) // replaced chunks are deleted after their grace
		w.Kill(w.hostOf(now.Chunks[0].Device))
		w.readAll()
	})
}

// readsUntil reads a file repeatedly, until ctx ends or a read fails.
func (w *world) readsUntil(ctx context.Context, name string) error {
	reader, err := w.Client(w.ctx, "reader")
	if err != nil {
		return err
	}
	defer reader.Close()
	for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		f, err := reader.OpenFile(w.ctx, name)
		if err != nil {
			return err
		}
		p := make([]byte, f.Size())
		err = errors.Join(f.ReadRange(w.ctx, p, 0), f.Close())
		if err == nil && !bytes.Equal(p, w.files[name]) {
			err = errors.New("it reads as other bytes")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// TestFalseReportsOfChunksAreCorrected: an administrator falsely reports every chunk
// of a stripe as missing. All exist: they are written again, and chunks lost later
// are rebuilt.
func TestFalseReportsOfChunksAreCorrected(t *testing.T) {
	var slow atomic.Bool
	rule := func(_ string, op vfs.Op) error {
		if op.Kind == vfs.OpWrite && strings.Contains(op.Path, "segments") && slow.Load() {
			time.Sleep(200 * time.Millisecond)
		}
		return nil
	}
	inWorld(t, incluster.Options{Chunkservers: 8, RepairGrace: 30 * time.Second, Rule: rule}, func(w *world) {
		w.writeOne("/f", moraine.Scheme{K: 4, M: 2})
		s := w.stripe("/f")
		slow.Store(true)
		liar, err := w.Admin(w.ctx, "liar")
		require.NoError(t, err)
		defer liar.Close()
		op := &wire.ReportBadChunks{}
		for i, c := range s.Chunks {
			op.Chunks = append(op.Chunks, &wire.BadChunk{Stripe: s.Id, Index: uint32(i), Device: c.Device, Version: s.Version, AtVersion: true, Kind: uint32(moraine.NotFound)})
		}
		_, err = rawclient.Of(liar).Meta(w.ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ReportBadChunks{ReportBadChunks: op}})
		require.NoError(t, err)
		require.EqualValues(t, 1, w.cluster().LostStripes)
		ctx, stop := context.WithCancel(w.ctx)
		read := make(chan error, 1)
		go func() { read <- w.readsUntil(ctx, "/f") }()
		w.sound()
		stop()
		require.NoError(t, <-read, "it was readable, and is not while it is rewritten")
		w.readAll()

		now := w.stripe("/f")
		w.Kill(w.hostOf(now.Chunks[0].Device), w.hostOf(now.Chunks[5].Device))
		for _, i := range []int{0, 5} {
			host := w.hostOf(now.Chunks[i].Device)
			w.until("it is out", func() bool { return w.device(host, 0).State == wire.DeviceState_DEVICE_STATE_OUT })
		}
		w.sound()
		now = w.stripe("/f")
		w.Kill(w.hostOf(now.Chunks[1].Device), w.hostOf(now.Chunks[2].Device))
		w.readAll()
	})
}

// TestLostStripeWaits: if no readable chunk may exist, the stripe stays as it is,
// and is reported as lost. Repairs are tried less and less often, nothing is
// reported as repaired, and all other work continues. The repair does not wait for
// a host that comes back with the needed chunks.
func TestLostStripeWaits(t *testing.T) {
	for _, byHand := range []bool{false, true} {
		name := map[bool]string{false: "its host was silent", true: "a person took it out"}[byHand]
		t.Run(name, func(t *testing.T) {
			inWorld(t, incluster.Options{Chunkservers: 4, RepairGrace: 30 * time.Second}, func(w *world) {
				w.writeOne("/f", moraine.Copies(2))
				s := w.stripe("/f")
				w.rotChunk(s, 1)
				away := w.hostOf(s.Chunks[0].Device)
				w.Kill(away)
				if byHand {
					w.setDevice(s.Chunks[0].Device, wire.DeviceState_DEVICE_STATE_OUT)
				}
				w.scrub(w.hostOf(s.Chunks[1].Device))
				lost := func() bool { c := w.cluster(); return c.LostStripes == 1 && c.GetHealing().GetScanning() == 0 }
				w.until("it is lost", lost)
				for range 50 {
					require.True(t, lost())
					c := w.cluster()
					require.Zero(t, c.RepairRunning, "it is only tried")
					require.EqualValues(t, 1, c.Waits.GetLost())
					time.Sleep(6 * time.Second)
				}
				n := w.tries()
				require.Positive(t, n, "what is said to be bad is tried")
				require.Less(t, n, 12, "in 5 minutes")
				now := w.stripe("/f")
				for i := range s.Chunks {
					require.Equal(t, s.Chunks[i].Device, now.Chunks[i].Device)
				}

				// Meanwhile others are repaired.
				w.writeOne("/g", moraine.Copies(3))
				g := w.stripe("/g")
				w.rotChunk(g, 2)
				w.scrub(w.hostOf(g.Chunks[2].Device))
				w.until("the other one is repaired", func() bool { return w.stripe("/g").Version > g.Version && w.cluster().RepairQueued == 1 })

				require.NoError(t, w.Restart(away))
				back := time.Now()
				w.sound()
				require.Less(t, time.Since(back), 2*time.Minute, "it waited for its next try")
				w.readAll()
			})
		})
	}
}
