// Package restores_test tests what a restored backup of the metadata brings back. A
// cluster of incluster continues after the backup, loses its metadata servers, and
// the restored state is compared with the contents of its devices. One path through
// it: inWorld starts a cluster, put writes files, backup takes a backup, drain and
// others change the cluster, restore restores the backup, and reads compares the
// files.
package restores_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/integration/localbucket"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	stateIn       = wire.DeviceState_DEVICE_STATE_IN
	stateDraining = wire.DeviceState_DEVICE_STATE_DRAINING
)

// world is a cluster with files of known content.
type world struct {
	*incluster.Cluster
	t           *testing.T
	ctx         context.Context
	admin       *incluster.Client
	files       map[string][]byte
	incarnation moraine.Incarnation
	bucket      *localbucket.Bucket // nil: there is none
}

// inBucketWorld is inWorld with an object tier.
func inBucketWorld(t *testing.T, opts incluster.Options, fn func(w *world)) {
	t.Helper()
	var b *localbucket.Bucket
	opts.Bucket = func(string) (object.Store, error) { // called in the bubble, before anything runs
		var err error
		if b == nil {
			b, err = localbucket.New(opts.Seed, nil)
		}
		return b, err
	}
	inWorld(t, opts, func(w *world) {
		w.bucket = b
		fn(w)
	})
}

// inWorld runs fn with a cluster under synctest's clock.
func inWorld(t *testing.T, opts incluster.Options, fn func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		if opts.Seed == 0 {
			opts.Seed = 7
		}
		opts.SnapshotEntries, opts.MemTableBytes = 5000, 4<<20 // these tests do not cover how the state is stored
		if opts.Metadata == 0 {
			opts.Metadata = 1 // nor, mostly, replication
		}
		c, err := incluster.Start(ctx, opts)
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Stop()) }()
		w := &world{Cluster: c, t: t, ctx: ctx, files: map[string][]byte{}, incarnation: 1}
		w.dial()
		defer func() { require.NoError(t, w.admin.Close()) }()
		fn(w)
	})
}

func (w *world) dial() {
	w.t.Helper()
	require.NoError(w.t, w.WaitReady(w.ctx))
	admin, err := w.Admin(w.ctx, fmt.Sprintf("ops%d", w.incarnation))
	require.NoError(w.t, err)
	w.admin = admin
}

// backup takes a backup of the metadata.
func (w *world) backup() []byte {
	w.t.Helper()
	b, err := w.admin.Backup(w.ctx)
	require.NoError(w.t, err)
	return b
}

// restore restarts the metadata from a backup.
func (w *world) restore(backup []byte) {
	w.t.Helper()
	w.admin.Kill()
	require.NoError(w.t, w.RestoreMetadata(backup, w.incarnation))
	w.incarnation++
	w.dial()
}

// put writes a file of so many random bytes.
func (w *world) put(name string, size int, seed byte) {
	w.t.Helper()
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{seed, byte(len(name)), byte(len(w.files))}).Read(data)
	f, err := w.admin.Create(w.ctx, name, client.CreateOptions{})
	require.NoError(w.t, err)
	_, err = f.Write(data)
	require.NoError(w.t, err)
	_, err = f.Commit(w.ctx)
	require.NoError(w.t, err)
	w.files[name] = data
}

// reads reports whether a file reads as it was written; it returns the error if it
// cannot be read. Other bytes fail the test.
func (w *world) reads(name string, want []byte) error {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, 30*time.Second)
	defer cancel()
	r, err := w.admin.OpenFile(ctx, name)
	if err != nil {
		return err
	}
	defer r.Close()
	have := make([]byte, len(want))
	if _, err = r.ReadAt(ctx, have, 0); err != nil {
		return err
	}
	require.True(w.t, bytes.Equal(want, have), "%s reads as other bytes", name)
	return nil
}

// unreadable names the unreadable files, with the reasons.
func (w *world) unreadable() (out []string) {
	w.t.Helper()
	for name, want := range w.files {
		if err := w.reads(name, want); err != nil {
			out = append(out, fmt.Sprintf("%s: %v", name, err))
		}
	}
	return out
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

// device is the first device of a host, nil if the service does not know the host.
func (w *world) device(host string) *wire.Device {
	w.t.Helper()
	for _, h := range w.cluster().GetTopology().GetHosts() {
		if h.Id == host && len(h.Devices) > 0 {
			return h.Devices[0]
		}
	}
	return nil
}

// until waits, by the bubble's clock, until holds is true.
func (w *world) until(what string, holds func() bool) {
	w.t.Helper()
	for end := time.Now().Add(30 * time.Minute); !holds(); time.Sleep(time.Second) {
		require.True(w.t, time.Now().Before(end), "%s: not within half an hour", what)
	}
}

func (w *world) set(host string, to wire.DeviceState) {
	w.t.Helper()
	w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_SetDeviceState{SetDeviceState: &wire.SetDeviceState{Device: w.device(host).Id, State: to}}})
}

// drain moves all chunks of hosts away, one host after the other, and puts each
// back into service when it is empty.
func (w *world) drain(hosts ...string) {
	w.t.Helper()
	for _, host := range hosts {
		w.set(host, stateDraining)
		w.until("drain of "+host, func() bool {
			c := w.cluster()
			return c.PendingBytes == 0 && c.RepairQueued == 0 && c.GetHealing().GetScanning() == 0 && len(w.listed(host)) == 0
		})
		w.set(host, stateIn)
	}
}

// listed is the list of chunks of a host's first device.
func (w *world) listed(host string) []*wire.ChunkReport {
	w.t.Helper()
	d := w.Dialer(transport.RoleAdmin, "lister")
	defer d.Close()
	for _, h := range w.cluster().GetTopology().GetHosts() {
		if h.Id != host || len(h.Devices) == 0 {
			continue
		}
		reply, err := d.Chunks(host, h.Addresses).Stat(w.ctx, &wire.StatDevices{List: &wire.ListChunks{Device: h.Devices[0].Id, Limit: 4096}})
		require.NoError(w.t, err)
		return reply.Listed.Chunks
	}
	return nil
}

// settled waits until every device has reported, the leader has adopted what it
// wants of these reports, and nothing waits for repair, except lost stripes.
func (w *world) settled() {
	w.t.Helper()
	w.until("reports", func() bool { return w.cluster().Unreported == 0 })
	time.Sleep(20 * time.Second)
	w.until("repair", func() bool {
		c := w.cluster()
		return c.RepairQueued == c.LostStripes && c.GetHealing().GetScanning() == 0
	})
}
