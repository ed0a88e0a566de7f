// Package bitflips_test flips one bit in each place where bytes are stored or sent,
// one place a row of its table. Each flip is detected, reported, and repaired if
// redundancy allows, and no wrong byte is served. One path through it: inWorld
// starts a cluster, a row's try writes a file and flips a bit, and shows checks the
// counter and the log line.
package bitflips_test

import (
	"bytes"
	"context"
	"log/slog"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/integration/localbucket"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/disk"
	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

const fileBytes = 240 << 10 // one stripe

// world is a cluster whose writer and reader use a network that a test may damage.
type world struct {
	*incluster.Cluster
	t     *testing.T
	ctx   context.Context
	net   *network
	admin *incluster.Client // over a network without hooks
	user  *incluster.Client
	path  string // of the current file
	data  []byte // of that file
	// peers is the network between chunkservers, if the world's options have it.
	peers *network
	// bucket is the object tier of a bucket world, and rot the memory of chunkservers.
	bucket *localbucket.Bucket
	rot    *rot
	lines  *lines // of the log
}

// inBucketWorld is inWorld with an object tier.
func inBucketWorld(t *testing.T, opts incluster.Options, fn func(w *world)) {
	t.Helper()
	var b *localbucket.Bucket
	opts.Bucket = func(string) (_ object.Store, err error) { // called in the bubble, before anything runs
		if b == nil {
			b, err = localbucket.New(7, nil)
		}
		return b, err
	}
	inWorld(t, opts, func(w *world) {
		w.bucket = b
		fn(w)
	})
}

// inWorld runs fn with a cluster of 8 chunkservers under synctest's clock.
func inWorld(t *testing.T, opts incluster.Options, fn func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		opts.Seed, opts.Chunkservers, opts.RepairGrace = 7, 8, 20*time.Second
		if opts.Metadata == 0 {
			opts.Metadata = 1
		}
		log := logged{lines: &lines{of: map[string]int{}}}
		if os.Getenv("MORAINE_TEST_LOG") != "" {
			log.Handler = slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo})
		}
		opts.Log = slog.New(log)
		opts.SnapshotEntries, opts.MemTableBytes = 5000, 4<<20
		peers, memory := &network{}, &rot{}
		opts.Chunks = func(_ string, s transport.ChunkService) transport.ChunkService { return rotting{s, memory} }
		opts.Dialer = func(_ string, d transport.Dialer) transport.Dialer { return dialer{d, peers} }
		c, err := incluster.Start(ctx, opts)
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Stop()) }()
		require.NoError(t, c.WaitReady(ctx))
		w := &world{Cluster: c, t: t, ctx: ctx, net: &network{}, path: "/f", data: make([]byte, fileBytes), peers: peers, rot: memory, lines: log.lines}
		rng := rand.NewChaCha8([32]byte{1})
		_, _ = rng.Read(w.data)
		w.admin, err = c.Admin(ctx, "ops")
		require.NoError(t, err)
		defer func() { require.NoError(t, w.admin.Close()) }()
		w.user = w.client("writer")
		defer w.user.Close()
		fn(w)
	})
}

// client opens a client that uses the network of the world.
func (w *world) client(name string) *incluster.Client {
	w.t.Helper()
	cl, err := w.ClientOver(w.ctx, name, client.Config{}, func(d transport.Dialer) transport.Dialer {
		return dialer{incluster.Through(d, w.net.meta), w.net}
	})
	require.NoError(w.t, err)
	return cl
}

// write writes the current file.
func (w *world) write() error {
	f, err := w.user.Create(w.ctx, w.path, client.CreateOptions{Scheme: moraine.Scheme{K: 4, M: 2}})
	if err != nil {
		return err
	}
	if _, err = f.Write(bytes.Clone(w.data)); err != nil {
		return err
	}
	_, err = f.Commit(w.ctx)
	return err
}

// read reads a range of the file with a client of its own, and requires that the
// returned bytes are right.
func (w *world) read(off, n int) error {
	w.t.Helper()
	return w.readBy(w.client("reader"), off, n)
}

func (w *world) readBy(cl *incluster.Client, off, n int) error {
	w.t.Helper()
	defer cl.Close()
	r, err := cl.OpenFile(w.ctx, w.path)
	if err != nil {
		return err
	}
	defer r.Close()
	p := make([]byte, n)
	if _, err = r.ReadAt(w.ctx, p, int64(off)); err == nil {
		require.True(w.t, bytes.Equal(w.data[off:off+n], p), "wrong bytes are served, %d at %d", n, off)
	}
	return err
}

// stripe is the record of the file's only stripe.
func (w *world) stripe() *wire.Stripe {
	w.t.Helper()
	attr, err := w.admin.Stat(w.ctx, w.path)
	require.NoError(w.t, err)
	resp, err := rawclient.Of(w.admin).Meta(w.ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: uint64(attr.Inode())}}})
	require.NoError(w.t, err)
	stripes := resp.GetExtents().GetStripes()
	require.Len(w.t, stripes, 1)
	return stripes[0]
}

// holder is the host of a chunk of the file.
func (w *world) holder(index int) string {
	w.t.Helper()
	device := w.stripe().Chunks[index].Device
	for _, h := range w.topology().GetTopology().GetHosts() {
		for _, d := range h.Devices {
			if d.Id == device {
				return h.Id
			}
		}
	}
	w.t.Fatalf("no host has device %d", device)
	return ""
}

func (w *world) topology() *wire.ClusterReply {
	w.t.Helper()
	resp, err := rawclient.Of(w.admin).Meta(w.ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
	require.NoError(w.t, err)
	return resp.GetCluster()
}

// until waits, by the bubble's clock, until holds is true.
func (w *world) until(what string, holds func() bool) {
	w.t.Helper()
	for end := time.Now().Add(10 * time.Minute); !holds(); time.Sleep(time.Second) {
		require.True(w.t, time.Now().Before(end), "%s: not within ten minutes", what)
	}
}

// repairedFrom waits until the layout of the stripe has changed and nothing waits for repair.
func (w *world) repairedFrom(before *wire.Stripe) {
	w.t.Helper()
	w.until("repair", func() bool { return w.stripe().Version > before.Version && w.topology().RepairQueued == 0 })
}

// scrub has all devices scrubbed.
func (w *world) scrub() (bad uint64) {
	w.t.Helper()
	time.Sleep(2 * time.Second)
	before := map[uint32]int64{}
	each := func(fn func(d *wire.Device)) {
		for _, h := range w.topology().GetTopology().GetHosts() {
			for _, d := range h.Devices {
				if d.State == wire.DeviceState_DEVICE_STATE_IN {
					fn(d)
				}
			}
		}
	}
	each(func(d *wire.Device) { before[d.Id] = d.Scrub.GetLastDone() })
	_, err := rawclient.Of(w.admin).Meta(w.ctx, &wire.MetaRequest{Op: &wire.MetaRequest_StartScrub{StartScrub: &wire.StartScrub{}}})
	require.NoError(w.t, err)
	w.until("scrub", func() bool {
		done := true
		each(func(d *wire.Device) { done = done && d.Scrub.GetLastDone() > before[d.Id] && !d.Scrub.GetRunning() })
		return done
	})
	each(func(d *wire.Device) { bad += d.Scrub.GetLastBad() })
	return bad
}

func counted(t *testing.T, c prometheus.Counter) float64 {
	t.Helper()
	var m dto.Metric
	require.NoError(t, c.Write(&m))
	return m.GetCounter().GetValue()
}

// rotOnDisk flips a bit of the record of a chunk on the disk of its host.
func (w *world) rotOnDisk(node string, id moraine.ChunkID) {
	w.t.Helper()
	w.flipRecord(node, id, func(r disk.RecordInfo) (at int64, bit int) { return r.Offset + r.Size - moraine.BlockSize/2, 2 })
}

// flipRecord flips the bit, selected by where, of the record of a chunk on the disk
// of its host.
func (w *world) flipRecord(node string, id moraine.ChunkID, where func(r disk.RecordInfo) (at int64, bit int)) {
	w.t.Helper()
	fs, found := w.Disk(node), false
	const dir = "/device1/segments"
	names, err := fs.List(dir)
	require.NoError(w.t, err)
	for _, name := range names {
		file := path.Join(dir, name)
		if !strings.HasSuffix(name, ".seg") {
			continue
		}
		_, err := disk.InspectSegment(fs, file, false, func(r disk.RecordInfo) error {
			if r.Tombstone == nil && r.Header.ID == id {
				found = true
				at, bit := where(r)
				return flipFile(fs, file, at, bit)
			}
			return nil
		})
		require.NoError(w.t, err)
	}
	require.True(w.t, found, "%s is not on %s", id, node)
}

func flipFile(fs vfs.FS, name string, at int64, bit int) error {
	f, err := fs.Open(name, vfs.Read|vfs.Write)
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		return err
	}
	_, err = f.WriteAt([]byte{b[0] ^ 1<<bit}, at)
	return err
}

// network is the network between clients and servers. Its hooks are set while no
// request runs.
type network struct {
	mu sync.Mutex
	// put sees a chunk that is put, and may change it; get sees the returned bytes.
	put func(req *wire.PutChunk, data [][]byte)
	get func(req *wire.GetChunk, dst []byte)
	// commit sees a commit before it is sent.
	commit func(c *wire.Commit)
}

func (n *network) set(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
}

func (n *network) meta(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	n.mu.Lock()
	if c := req.GetCommit(); c != nil && n.commit != nil {
		n.commit(c)
	}
	n.mu.Unlock()
	return m.Do(ctx, req)
}

type dialer struct {
	transport.Dialer
	net *network
}

func (d dialer) Chunks(node string, addrs []string) transport.Chunks {
	return chunks{d.Dialer.Chunks(node, addrs), d.net}
}

type chunks struct {
	transport.Chunks
	net *network
}

func (c chunks) Put(ctx context.Context, req *wire.PutChunk, data ...[]byte) (*wire.PutChunkReply, error) {
	c.net.mu.Lock()
	if c.net.put != nil {
		c.net.put(req, data)
	}
	c.net.mu.Unlock()
	return c.Chunks.Put(ctx, req, data...)
}

func (c chunks) Get(ctx context.Context, req *wire.GetChunk, dst []byte, each func([]byte)) (*wire.GetChunkReply, int, error) {
	return c.Chunks.Get(ctx, req, dst, func(p []byte) {
		c.net.mu.Lock()
		if c.net.get != nil {
			c.net.get(req, p)
		}
		c.net.mu.Unlock()
		each(p)
	})
}

// encodeWrong makes one bit of parity chunks flip as they are made: their
// checksums, and so their records, are those of the wrong parity. It must be set
// before the file is written.
func (n *network) encodeWrong(indexes ...uint32) { n.encodeWrongAt(8*77+2, indexes...) }

func (n *network) encodeWrongAt(bit int, indexes ...uint32) {
	sums := map[moraine.ChunkID]uint32{}
	n.set(func() {
		n.put = func(req *wire.PutChunk, data [][]byte) {
			if !slices.Contains(indexes, req.Index) {
				return
			}
			data[0] = bytes.Clone(data[0])
			flipBit(data[0], bit)
			req.Crc = 0
			for _, p := range data {
				req.Crc = crc.Update(req.Crc, p)
			}
			sums[moraine.ChunkID{Stripe: moraine.StripeID(req.Stripe), Index: uint8(req.Index)}] = req.Crc
		}
		n.commit = func(c *wire.Commit) {
			for _, s := range c.Stripes {
				for _, index := range indexes {
					s.Chunks[index].Crc = sums[moraine.ChunkID{Stripe: moraine.StripeID(s.Id), Index: uint8(index)}]
				}
			}
		}
	})
}
