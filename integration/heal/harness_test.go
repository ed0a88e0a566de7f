// Package heal_test tests what a cluster does by itself about disks that return
// damaged data, ignore writes or disappear. It runs over a cluster of incluster:
// its devices are the shipped segment logs, on disks in memory that a test can
// damage. One path through it: inWorld starts a cluster, write makes files, rot
// damages a chunk, scrubAll finds it, sound waits for the repair, and readAll
// compares all files.
package heal_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/disk"
	"github.com/morainefs/moraine/transport/wire"
)

// world is a cluster with files of known content.
type world struct {
	*incluster.Cluster
	t     *testing.T
	ctx   context.Context
	admin *incluster.Client
	files map[string][]byte
}

// inWorld runs fn with a cluster under synctest's clock. It has one metadata server,
// unless opts says otherwise: most tests do not cover how the state is replicated.
func inWorld(t *testing.T, opts incluster.Options, fn func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		opts.Seed = 7
		if opts.SnapshotEntries == 0 {
			opts.SnapshotEntries, opts.MemTableBytes = 5000, 4<<20 // these tests do not cover how the state is stored
		}
		if opts.Metadata == 0 {
			opts.Metadata = 1
		}
		c, err := incluster.Start(ctx, opts)
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Stop()) }()
		require.NoError(t, c.WaitReady(ctx))
		admin, err := c.Admin(ctx, "ops")
		require.NoError(t, err)
		w := &world{Cluster: c, t: t, ctx: ctx, admin: admin, files: map[string][]byte{}}
		defer func() { require.NoError(t, admin.Close()) }()
		fn(w)
	})
}

// write makes n files of a few stripes.
func (w *world) write(n int) {
	w.t.Helper()
	for i := range n {
		data := make([]byte, 600<<10+i*1000)
		rng := rand.NewChaCha8([32]byte{byte(i), byte(len(w.files))})
		_, _ = rng.Read(data)
		name := fmt.Sprintf("/f%d", len(w.files))
		f, err := w.admin.Create(w.ctx, name, client.CreateOptions{})
		require.NoError(w.t, err)
		_, err = f.Write(data)
		require.NoError(w.t, err)
		_, err = f.Commit(w.ctx)
		require.NoError(w.t, err)
		w.files[name] = data
	}
}

// readAll compares every file with the written bytes.
func (w *world) readAll() {
	w.t.Helper()
	for name, want := range w.files {
		r, err := w.admin.OpenFile(w.ctx, name)
		require.NoError(w.t, err)
		have := make([]byte, len(want))
		_, err = r.ReadAt(w.ctx, have, 0)
		require.NoError(w.t, err, name)
		require.True(w.t, bytes.Equal(want, have), "%s reads as other bytes", name)
		require.NoError(w.t, r.Close())
	}
}

func (w *world) ask(req *wire.MetaRequest) *wire.MetaResponse {
	w.t.Helper()
	resp, err := rawclient.Of(w.admin).Meta(w.ctx, req)
	require.NoError(w.t, err)
	return resp
}

func (w *world) cluster() *wire.ClusterReply {
	w.t.Helper()
	return w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}}).GetCluster()
}

func (w *world) host(id string) *wire.Host {
	w.t.Helper()
	for _, h := range w.cluster().GetTopology().GetHosts() {
		if h.Id == id {
			return h
		}
	}
	w.t.Fatalf("no host %s", id)
	return nil
}

// until waits, by the bubble's clock, until holds is true.
func (w *world) until(what string, holds func() bool) {
	w.t.Helper()
	for end := time.Now().Add(10 * time.Minute); !holds(); time.Sleep(time.Second) {
		require.True(w.t, time.Now().Before(end), "%s: not within ten minutes", what)
	}
}

// sound waits until nothing is left to repair.
func (w *world) sound() {
	w.t.Helper()
	w.until("repair", func() bool {
		c := w.cluster()
		return c.RepairQueued == 0 && c.GetHealing().GetScanning() == 0
	})
}

// scrubAll scrubs every device now, and returns how many chunks were bad.
func (w *world) scrubAll() (bad uint64) {
	w.t.Helper()
	before := map[uint32]int64{}
	each := func(fn func(d *wire.Device)) {
		for _, h := range w.cluster().GetTopology().GetHosts() {
			for _, d := range h.Devices {
				fn(d)
			}
		}
	}
	time.Sleep(2 * time.Second) // passes that end within the same second cannot be distinguished
	each(func(d *wire.Device) { before[d.Id] = d.Scrub.GetLastDone() })
	w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_StartScrub{StartScrub: &wire.StartScrub{}}})
	w.until("scrub", func() bool {
		done := true
		each(func(d *wire.Device) { done = done && d.Scrub.GetLastDone() > before[d.Id] && !d.Scrub.GetRunning() })
		return done
	})
	each(func(d *wire.Device) { bad += d.Scrub.GetLastBad() })
	return bad
}

// record is a chunk's record on the disk of a node.
type record struct {
	file string
	disk.RecordInfo
}

// records lists the chunks on a node's first device.
func (w *world) records(node string) []record {
	w.t.Helper()
	var out []record
	fs := w.Disk(node)
	dir := "/device1/segments"
	names, err := fs.List(dir)
	require.NoError(w.t, err)
	for _, name := range names {
		if !strings.HasSuffix(name, ".seg") {
			continue
		}
		file := path.Join(dir, name)
		_, err := disk.InspectSegment(fs, file, false, func(r disk.RecordInfo) error {
			if r.Tombstone == nil {
				out = append(out, record{file, r})
			}
			return nil
		})
		require.NoError(w.t, err)
	}
	return out
}

// peek and poke read and change bytes on the disk of a node directly.
func (w *world) peek(node string, r record) []byte {
	w.t.Helper()
	f, err := w.Disk(node).Open(r.file, vfs.Read)
	require.NoError(w.t, err)
	defer f.Close()
	b := make([]byte, r.Size)
	_, err = f.ReadAt(b, r.Offset)
	require.NoError(w.t, err)
	return b
}

func (w *world) poke(node string, r record, off int64, b []byte) {
	w.t.Helper()
	f, err := w.Disk(node).Open(r.file, vfs.Write)
	require.NoError(w.t, err)
	defer f.Close()
	_, err = f.WriteAt(b, r.Offset+off)
	require.NoError(w.t, err)
}
