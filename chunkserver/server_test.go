package chunkserver_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/chunkserver"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/disk"
	"github.com/morainefs/moraine/tiers/tiertest"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/capability/capabilitytest"
	"github.com/morainefs/moraine/transport/wire"
)

// host is a running chunkserver on a file system in memory.
type host struct {
	*chunkserver.Server
	meta *fakeMeta
	stop func() error
}

func config(devices ...string) chunkserver.Config {
	cfg := chunkserver.Config{Node: "n1", Rack: "r1", Addresses: []string{"n1:9100"}, MemoryBytes: 64 << 20,
		HeartbeatInterval: 2 * time.Millisecond, ReportInterval: 20 * time.Millisecond}
	for _, d := range devices {
		cfg.Devices = append(cfg.Devices, chunkserver.DeviceConfig{Dir: d, SegmentBytes: 4 << 20})
	}
	return cfg
}

func start(t *testing.T, fsys vfs.FS, meta *fakeMeta, cfg chunkserver.Config) *host {
	t.Helper()
	return startWith(t, fsys, meta, cfg, nil)
}

// startWith starts a host that has a bucket, unless bucket is nil.
func startWith(t *testing.T, fsys vfs.FS, meta *fakeMeta, cfg chunkserver.Config, bucket chunkserver.Bucket) *host {
	t.Helper()
	return startDeps(t, meta, cfg, chunkserver.Deps{Meta: meta, FS: fsys, Bucket: bucket})
}

// startLogging starts a host that writes to a log.
func startLogging(t *testing.T, fsys vfs.FS, meta *fakeMeta, cfg chunkserver.Config, log *slog.Logger) *host {
	t.Helper()
	return startDeps(t, meta, cfg, chunkserver.Deps{Meta: meta, FS: fsys, Log: log})
}

// formatFor formats the devices of a host that is new to the metadata service.
func formatFor(t *testing.T, meta *fakeMeta, cfg chunkserver.Config, fsys vfs.FS) {
	t.Helper()
	if meta.lastHost() != nil {
		return
	}
	for _, d := range cfg.Devices {
		if _, err := disk.ReadIdentity(fsys, d.Dir); errors.Is(err, moraine.NotFound) {
			format(t, fsys, d.Dir)
		}
	}
}

func startDeps(t *testing.T, meta *fakeMeta, cfg chunkserver.Config, deps chunkserver.Deps) *host {
	t.Helper()
	formatFor(t, meta, cfg, deps.FS)
	s, err := chunkserver.New(cfg, deps)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	h := &host{Server: s, meta: meta}
	stopped := false
	h.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-ended
	}
	t.Cleanup(func() { require.NoError(t, h.stop()) })
	select {
	case <-s.Ready():
	case err := <-ended:
		stopped = true
		cancel()
		require.NoError(t, err)
		t.Fatal("ended before it was ready")
	}
	return h
}

// waitFor fails the test if what does not become true. The limit matters only for a
// failed test.
func (h *host) waitFor(t *testing.T, what func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.True(t, h.meta.wait(ctx, what))
}

// testChunk is a put and its bytes.
type testChunk struct {
	req  *wire.PutChunk
	data []byte
}

func chunk(stripe uint64, length int) testChunk {
	data := make([]byte, length)
	tiertest.Fill(data, stripe)
	return testChunk{data: data, req: &wire.PutChunk{Stripe: 1<<40 | stripe, Index: 1, Device: 1, Version: 1, Tenant: 7,
		Crc: crc.Sum(data), Level: uint32(moraine.NVMe), Capability: capabilitytest.Write(cluster, session, 1<<40, 1<<20)}}
}

// session owns the grant that covers the chunks.
const session = 5

// repair makes the put a repair under an intent, of a layout version.
func (c testChunk) repair(version uint32) testChunk {
	c.req.Repair, c.req.Version = true, version
	c.req.Capability = capabilitytest.Repair(cluster, "n2", &wire.Intent{Stripe: c.req.Stripe, Index: c.req.Index, Device: c.req.Device, Version: version})
	return c
}

func (c testChunk) put(t *testing.T, h *host) (*wire.PutChunkReply, error) {
	p := &payload{data: c.data}
	reply, err := h.PutChunk(t.Context(), c.req, p)
	require.Equal(t, 1, p.taken, "the payload is read or discarded, once")
	return reply, err
}

func (c testChunk) get(off, n uint64) *wire.GetChunk {
	return &wire.GetChunk{Stripe: c.req.Stripe, Index: c.req.Index, Device: c.req.Device,
		Tenant: c.req.Tenant, Offset: off, Length: n}
}

func (c testChunk) check(t *testing.T, h *host) {
	t.Helper()
	n := uint64(len(c.data))
	reply, payload, release, err := h.GetChunk(t.Context(), c.get(0, n))
	require.NoError(t, err)
	defer release()
	require.Len(t, payload, 1)
	require.Equal(t, c.req.Crc, crc.Sum(payload[0]))
	require.Equal(t, c.req.Crc, reply.Crc)
	require.Equal(t, c.req.Crc, reply.PayloadCrc)
	require.Equal(t, n, reply.ChunkLength)
	require.Equal(t, c.req.Version, reply.Version)
}

func TestAChunkComesBackAsItWasPut(t *testing.T) {
	h := start(t, vfs.NewMem(1), newFakeMeta(), config("/a"))
	for i, n := range []int{1, 4096, 300_001, 4 << 20} {
		c := chunk(uint64(i+1), n)
		reply, err := c.put(t, h)
		require.NoError(t, err)
		require.Equal(t, uint32(moraine.NVMe), reply.Level)
		require.Equal(t, uint64(1), reply.Epoch)
		c.check(t, h)
		_, err = c.put(t, h)
		require.NoError(t, err, "a repeated put")
	}
	c := chunk(3, 300_001)
	for _, r := range [][2]uint64{{0, 10}, {5, 4096}, {4096, 8192}, {290_000, 10_001}} {
		reply, payload, release, err := h.GetChunk(t.Context(), c.get(r[0], r[1]))
		require.NoError(t, err)
		require.Equal(t, crc.Sum(c.data[r[0]:r[0]+r[1]]), crc.Sum(payload[0]))
		require.Equal(t, crc.Sum(payload[0]), reply.PayloadCrc)
		release()
	}
}

// TestMemoryThatRotsShows changes a byte in memory. The reader detects it, and gets
// the right bytes with verify, as does every later reader. If the checksum is
// computed from the bytes, as for a part of a block, the bytes are verified first.
func TestMemoryThatRotsShows(t *testing.T) {
	h := start(t, vfs.NewMem(1), newFakeMeta(), config("/a"))
	c := chunk(1, 300_001)
	_, err := c.put(t, h)
	require.NoError(t, err)
	get := func(req *wire.GetChunk) (uint32, []byte, func()) {
		t.Helper()
		reply, payload, release, err := h.GetChunk(t.Context(), req)
		require.NoError(t, err)
		return reply.PayloadCrc, payload[0], release
	}
	rot := func(at uint64) {
		t.Helper()
		_, data, release := get(c.get(at/4096*4096, 4096))
		data[at%4096] ^= 1
		release()
	}

	rot(50_000)
	said, data, release := get(c.get(0, 300_001))
	require.Equal(t, c.req.Crc, said)
	require.NotEqual(t, c.req.Crc, crc.Sum(data))
	release()
	again := c.get(0, 300_001)
	again.Verify = true
	said, data, release = get(again)
	require.Equal(t, c.req.Crc, said)
	require.Equal(t, c.req.Crc, crc.Sum(data))
	release()
	c.check(t, h)

	rot(50_000)
	said, data, release = get(c.get(49_500, 10_000))
	require.Equal(t, crc.Sum(c.data[49_500:59_500]), said)
	require.Equal(t, said, crc.Sum(data))
	release()
	c.check(t, h)
}

func TestRefusedPutsStoreNothing(t *testing.T) {
	h := start(t, vfs.NewMem(1), newFakeMeta(), config("/a"))
	for name, c := range map[string]struct {
		change func(c *testChunk)
		kind   moraine.Kind
	}{
		"another crc":     {func(c *testChunk) { c.req.Crc++ }, moraine.Corrupt},
		"a changed byte":  {func(c *testChunk) { c.data[77_777] ^= 1 }, moraine.Corrupt},
		"no bytes":        {func(c *testChunk) { c.data = nil }, moraine.TooLarge},
		"too many bytes":  {func(c *testChunk) { c.data = make([]byte, moraine.MaxChunkSize+1) }, moraine.TooLarge},
		"another device":  {func(c *testChunk) { c.req.Device = 9 }, moraine.Unavailable},
		"no version":      {func(c *testChunk) { c.req.Version = 0 }, moraine.InvalidArgument},
		"last version":    {func(c *testChunk) { c.req.Version = 1<<32 - 1 }, moraine.InvalidArgument},
		"no stripe":       {func(c *testChunk) { c.req.Stripe = 0 }, moraine.InvalidArgument},
		"index too great": {func(c *testChunk) { c.req.Index = 256 }, moraine.InvalidArgument},
	} {
		bad := chunk(1, 100_000)
		c.change(&bad)
		_, err := bad.put(t, h)
		require.ErrorIs(t, err, c.kind, name)
		_, _, _, err = h.GetChunk(t.Context(), chunk(1, 1).get(0, 0))
		require.ErrorIs(t, err, moraine.NotFound, name)
	}
}

func TestABrokenConnectionStoresNothing(t *testing.T) {
	h := start(t, vfs.NewMem(1), newFakeMeta(), config("/a"))
	c := chunk(1, 100_000)
	lost := errors.New("connection lost")
	_, err := h.PutChunk(t.Context(), c.req, &payload{data: c.data, err: lost})
	require.ErrorIs(t, err, lost)
	_, _, _, err = h.GetChunk(t.Context(), c.get(0, 0))
	require.ErrorIs(t, err, moraine.NotFound)
}

func TestTenantsAreHeldAgainstTheChunk(t *testing.T) {
	h := start(t, vfs.NewMem(1), newFakeMeta(), config("/a"))
	c := chunk(1, 100)
	_, err := c.put(t, h)
	require.NoError(t, err)
	for name, x := range map[string]struct {
		change func(r *wire.GetChunk)
		kind   moraine.Kind
	}{
		"another tenant": {func(r *wire.GetChunk) { r.Tenant = 8 }, moraine.PermissionDenied},
		"past the end":   {func(r *wire.GetChunk) { r.Length = 101 }, moraine.InvalidArgument},
		"far past":       {func(r *wire.GetChunk) { r.Offset = 1 << 62; r.Length = 1 << 62 }, moraine.InvalidArgument},
		"another index":  {func(r *wire.GetChunk) { r.Index = 2 }, moraine.NotFound},
		"index 257":      {func(r *wire.GetChunk) { r.Index = 257 }, moraine.InvalidArgument},
		"another device": {func(r *wire.GetChunk) { r.Device = 2 }, moraine.Unavailable},
	} {
		r := c.get(0, 100)
		x.change(r)
		_, _, _, err := h.GetChunk(t.Context(), r)
		require.ErrorIs(t, err, x.kind, name)
	}
}

func TestTokensConfineClients(t *testing.T) {
	h := start(t, vfs.NewMem(1), newFakeMeta(), config("/a"))
	client := func(c *wire.TokenClaims) *transport.Peer {
		return &transport.Peer{Role: transport.RoleClient, Node: "c", Token: c}
	}
	for name, c := range map[string]struct {
		peer     *transport.Peer
		put, get moraine.Kind // Internal: allowed
	}{
		"its tenant":      {client(&wire.TokenClaims{Session: session, Tenants: []uint32{3, 7}}), 0, 0},
		"all tenants":     {client(&wire.TokenClaims{Session: session, AllTenants: true}), 0, 0},
		"another tenant":  {client(&wire.TokenClaims{Tenants: []uint32{3}}), moraine.PermissionDenied, moraine.PermissionDenied},
		"read-only":       {client(&wire.TokenClaims{AllTenants: true, ReadOnly: true}), moraine.ReadOnly, 0},
		"no token":        {client(nil), moraine.Unauthenticated, moraine.Unauthenticated},
		"a gateway's too": {&transport.Peer{Role: transport.RoleGateway, Node: "g"}, moraine.Unauthenticated, moraine.Unauthenticated},
		"a server":        {&transport.Peer{Role: transport.RoleChunkserver, Node: "n2"}, moraine.PermissionDenied, moraine.PermissionDenied},
	} {
		ctx := transport.WithPeer(t.Context(), c.peer)
		ch := chunk(1, 1000)
		p := &payload{data: ch.data}
		_, err := h.PutChunk(ctx, ch.req, p)
		requireKind(t, c.put, err, name)
		require.Equal(t, 1, p.taken, name)
		if err != nil {
			_, err = ch.put(t, h)
			require.NoError(t, err)
		}
		get := ch.get(0, 1000)
		get.Capability = ch.req.Capability
		_, _, release, err := h.GetChunk(ctx, get)
		requireKind(t, c.get, err, name)
		if err == nil {
			release()
		}
	}
}

func requireKind(t *testing.T, kind moraine.Kind, err error, name string) {
	t.Helper()
	if kind == moraine.Internal {
		require.NoError(t, err, name)
		return
	}
	require.ErrorIs(t, err, kind, name)
}

func TestANearlyFullDeviceTakesOnlyRepairs(t *testing.T) {
	cfg := config("/a")
	cfg.Devices[0].CapacityBytes = 10 << 20
	h := start(t, vfs.NewMem(1), newFakeMeta(), cfg)
	var err error
	n := uint64(1)
	for ; err == nil; n++ {
		require.Less(t, n, uint64(200))
		_, err = chunk(n, 100_000).put(t, h)
	}
	require.ErrorIs(t, err, moraine.NoSpace)
	repair := chunk(n, 100_000).repair(2)
	_, err = repair.put(t, h)
	require.NoError(t, err)
}

// gathered is a payload that arrives once all other puts have been admitted or
// refused.
type gathered struct {
	payload
	all *sync.WaitGroup
}

func (g *gathered) ReadInto(dst []byte, each func([]byte)) error {
	g.all.Done()
	g.all.Wait()
	return g.payload.ReadInto(dst, each)
}

func (g *gathered) Discard() error {
	g.all.Done()
	return g.payload.Discard()
}

// However many puts run concurrently, into memory or to the device, 2% of it stays
// free for repairs.
func TestPutsUnderWayLeaveRoomToRepairs(t *testing.T) {
	for _, level := range []moraine.Level{moraine.Memory, moraine.NVMe} {
		t.Run(level.String(), func(t *testing.T) {
			const capacity, length, many = 8 << 20, 256<<10 + 5, 48
			cfg := config("/a")
			cfg.Devices[0].CapacityBytes = capacity
			h := start(t, vfs.NewMem(1), newFakeMeta(), cfg)
			var puts, all sync.WaitGroup
			all.Add(many)
			errs := make([]error, many)
			for i := range many {
				puts.Go(func() {
					c := chunk(uint64(i+1), length)
					c.req.Level = uint32(level)
					_, errs[i] = h.PutChunk(t.Context(), c.req, &gathered{payload: payload{data: c.data}, all: &all})
				})
			}
			puts.Wait()
			taken := 0
			for _, err := range errs {
				if err == nil {
					taken++
					continue
				}
				require.ErrorIs(t, err, moraine.NoSpace)
			}
			_, err := h.SyncDevices(t.Context(), &wire.SyncDevices{Devices: []uint32{1}})
			require.NoError(t, err)
			beats := 0
			h.meta.set(func() { beats = len(h.meta.beats) })
			h.waitFor(t, func() bool { return len(h.meta.beats) > beats+1 })
			free := uint64(0)
			h.meta.set(func() { free = capacity - h.meta.lastBeat(1)[0].GetUsed() })
			t.Logf("%d of %d were taken, %.2f%% are free", taken, many, float64(free)*100/capacity)
			require.GreaterOrEqual(t, free, uint64(capacity/50), "the 2% are kept")
			require.Less(t, free, uint64(capacity/50+2*length), "and little more")
			repair := chunk(many+1, 100_000).repair(2)
			_, err = repair.put(t, h)
			require.NoError(t, err)
		})
	}
}

func TestDeletionsAreCarriedOutAndAcknowledged(t *testing.T) {
	meta := newFakeMeta()
	// The first acknowledgement is lost before it arrives, the second one's answer
	// is lost.
	acks := 0
	meta.fault = func(req *wire.MetaRequest, done bool) error {
		if req.GetDeletedChunks() == nil {
			return nil
		}
		if !done {
			acks++
		}
		if acks == 1 || acks == 2 && done {
			return &moraine.Error{Kind: moraine.Unavailable}
		}
		return nil
	}
	h := start(t, vfs.NewMem(1), meta, config("/a", "/b"))
	dead, spared := chunk(1, 1000), chunk(2, 1000)
	for _, c := range []testChunk{dead, spared} {
		_, err := c.put(t, h)
		require.NoError(t, err)
	}
	deletion := func(c testChunk, below uint32) *wire.Deletion {
		return &wire.Deletion{Device: c.req.Device, Stripe: c.req.Stripe, Index: c.req.Index, Below: below}
	}
	meta.set(func() {
		meta.deaths[1] = []*wire.Deletion{deletion(dead, 2), deletion(spared, 1)}
		meta.deaths[9] = []*wire.Deletion{{Device: 9, Stripe: 1}}
	})
	h.waitFor(t, func() bool { return len(meta.deaths[1]) == 0 })
	_, _, _, err := h.GetChunk(t.Context(), dead.get(0, 0))
	require.ErrorIs(t, err, moraine.NotFound)
	spared.check(t, h)
	meta.set(func() { require.GreaterOrEqual(t, acks, 2) })
}

// TestADeviceDelaysOnlyItsOwnDeletions: a device whose disk hangs or fails during
// deletions delays those of no other device, and heartbeats continue to request
// deletions. When it answers, its own are carried out.
func TestADeviceDelaysOnlyItsOwnDeletions(t *testing.T) {
	for name, fails := range map[string]bool{"it hangs": false, "it fails": true} {
		t.Run(name, func(t *testing.T) {
			var stuck, hung atomic.Bool
			answers := make(chan struct{})
			release := sync.OnceFunc(func() { close(answers) })
			fsys := vfs.NewFault(vfs.NewMem(1), func(op vfs.Op) error {
				if !stuck.Load() || !strings.HasPrefix(op.Path, "/a/") || op.Kind != vfs.OpSync && op.Kind != vfs.OpWrite {
					return nil
				}
				hung.Store(true)
				if fails {
					return syscall.EIO
				}
				<-answers
				return nil
			})
			meta := newFakeMeta()
			h := start(t, fsys, meta, config("/a", "/b"))
			defer release()
			kill := func(c testChunk) {
				_, err := c.put(t, h)
				require.NoError(t, err)
				meta.set(func() {
					id := c.req.Device
					meta.deaths[id] = append(meta.deaths[id], &wire.Deletion{Device: id, Stripe: c.req.Stripe, Index: c.req.Index, Below: 4})
				})
			}
			first := chunk(1, 1000)
			_, err := first.put(t, h)
			require.NoError(t, err)
			stuck.Store(true)
			meta.set(func() {
				meta.deaths[1] = []*wire.Deletion{{Device: 1, Stripe: first.req.Stripe, Index: first.req.Index, Below: 4}}
			})
			h.waitFor(t, hung.Load)
			for i := range uint64(3) {
				kill(on(chunk(2+i, 1000), 2))
				h.waitFor(t, func() bool { return len(meta.deaths[2]) == 0 })
			}
			meta.set(func() { require.Len(t, meta.deaths[1], 1, "nothing is said of what is not done") })
			stuck.Store(false)
			release()
			if !fails {
				h.waitFor(t, func() bool { return len(meta.deaths[1]) == 0 })
			}
		})
	}
}

// A pass over each device lists all its chunks. TestALongReportIsCutBetweenStripes has
// a pass of more than one slice.
func TestReportsListAllChunks(t *testing.T) {
	meta := newFakeMeta()
	h := start(t, vfs.NewMem(1), meta, config("/a", "/b"))
	const n = 600
	for i := range uint64(n) {
		c := chunk(1+i/2, 10)
		c.req.Index = uint32(i % 2)
		c.req.Device = uint32(1 + i/(n/2)%2)
		_, err := c.put(t, h)
		require.NoError(t, err)
	}
	want := map[uint32]int{1: n / 2, 2: n - n/2}
	for device := range want {
		var last []*wire.ReportChunks
		h.waitFor(t, func() bool {
			p := meta.passes[device]
			if len(p) == 0 {
				return false
			}
			last = p[len(p)-1]
			total := 0
			for _, r := range last {
				total += len(r.Chunks)
			}
			return total == want[device]
		})
		checkPass(t, last)
	}
}

// checkPass verifies that the slices of a pass follow each other, hold no chunk
// outside of their range, and split no stripe.
func checkPass(t *testing.T, pass []*wire.ReportChunks) {
	t.Helper()
	next := uint64(0)
	for _, r := range pass {
		require.Equal(t, next, r.From)
		require.Positive(t, r.PassStarted)
		require.Equal(t, pass[0].PassStarted, r.PassStarted)
		for _, c := range r.Chunks {
			require.GreaterOrEqual(t, c.Stripe, r.From)
			require.True(t, r.To == 0 || c.Stripe < r.To)
			require.Equal(t, uint64(10), c.Length)
			require.Equal(t, uint32(1), c.Version)
			require.NotZero(t, c.Crc)
		}
		next = r.To
	}
	require.Zero(t, next)
}

func TestAFailingDeviceIsReportedOutAndTheOthersServe(t *testing.T) {
	meta, mem := newFakeMeta(), vfs.NewMem(1)
	var bad atomic.Bool
	fsys := vfs.NewFault(mem, func(op vfs.Op) error {
		if bad.Load() && op.Kind == vfs.OpSync && strings.HasPrefix(op.Path, "/a/segments") {
			return syscall.EIO
		}
		return nil
	})
	h := start(t, fsys, meta, config("/a", "/b"))
	one, two := chunk(1, 1000), chunk(2, 1000)
	two.req.Device = 2
	bad.Store(true)
	_, err := one.put(t, h)
	require.ErrorIs(t, err, moraine.IOError)
	_, err = two.put(t, h)
	require.NoError(t, err)
	h.waitFor(t, func() bool {
		d := meta.lastBeat(2)
		return d[0].GetState() == wire.DeviceState_DEVICE_STATE_OUT && d[0].Reason != "" &&
			d[1].GetState() == wire.DeviceState_DEVICE_STATE_IN
	})
	_, err = h.SyncDevices(t.Context(), &wire.SyncDevices{Devices: []uint32{2}})
	require.NoError(t, err)
	_, err = h.SyncDevices(t.Context(), &wire.SyncDevices{})
	require.ErrorIs(t, err, moraine.IOError)
	h.waitFor(t, func() bool { return h.Healthy() == nil }) // once the server has the answer to its last heartbeat
	stat, err := h.StatDevices(t.Context(), &wire.StatDevices{})
	require.NoError(t, err)
	require.Len(t, stat.Devices, 2)
	require.Equal(t, wire.DeviceState_DEVICE_STATE_OUT, stat.Devices[0].State)
	require.Equal(t, uint64(1), stat.Devices[1].Chunks)
}

func TestADiskThatIsBrokenFromTheStartIsOut(t *testing.T) {
	meta, mem := newFakeMeta(), vfs.NewMem(1)
	require.NoError(t, start(t, mem, meta, config("/a", "/b")).stop())
	fsys := vfs.NewFault(mem, func(op vfs.Op) error {
		if op.Kind == vfs.OpList && strings.HasPrefix(op.Path, "/a/segments") {
			return syscall.EIO
		}
		return nil
	})
	h := start(t, fsys, meta, config("/a", "/b"))
	h.waitFor(t, func() bool { return meta.lastBeat(2)[0].GetState() == wire.DeviceState_DEVICE_STATE_OUT })
	one, two := chunk(1, 1000), chunk(2, 1000)
	two.req.Device = 2
	_, err := one.put(t, h)
	require.ErrorIs(t, err, moraine.IOError)
	_, err = two.put(t, h)
	require.NoError(t, err)

	// Without a working disk the server cannot start.
	s, err := chunkserver.New(config("/a"), chunkserver.Deps{Meta: meta, FS: fsys})
	require.NoError(t, err)
	require.ErrorIs(t, s.Run(t.Context()), moraine.IOError)
}

// TestAMistypedDeviceIsNotMade starts a host that is new to the cluster with a
// directory that holds no device, alone and beside one that does. The host says
// what to do, and writes nothing.
func TestAMistypedDeviceIsNotMade(t *testing.T) {
	for name, dirs := range map[string][]string{"alone": {"/mnt/typo"}, "beside a device": {"/a", "/mnt/typo"}} {
		for _, made := range []bool{false, true} { // the directory exists
			t.Run(fmt.Sprintf("%s, made %v", name, made), func(t *testing.T) {
				meta, mem := newFakeMeta(), vfs.NewMem(1)
				format(t, mem, "/a")
				if made {
					require.NoError(t, mem.MkdirAll("/mnt/typo"))
				}
				s, err := chunkserver.New(config(dirs...), chunkserver.Deps{Meta: meta, FS: mem})
				require.NoError(t, err)
				err = s.Run(t.Context())
				require.ErrorIs(t, err, moraine.NotFound)
				require.ErrorContains(t, err, "/mnt/typo")
				require.ErrorContains(t, err, "moraine device format /mnt/typo")
				require.Nil(t, meta.lastHost(), "it has registered")
				names, err := mem.List("/mnt/typo")
				if made {
					require.NoError(t, err)
				}
				require.Empty(t, names)
			})
		}
	}
}

// TestADiskThatIsNotMountedIsLeftOut starts a host with a directory that holds no
// device: at its first start, later, and after the operator made a device.
func TestADiskThatIsNotMountedIsLeftOut(t *testing.T) {
	meta, mem := newFakeMeta(), vfs.NewMem(1)
	require.NoError(t, start(t, mem, meta, config("/a", "/b")).stop())
	before, err := disk.ReadIdentity(mem, "/b")
	require.NoError(t, err)

	// The mount of /b is gone: its directory is now another, empty one.
	require.NoError(t, mem.Rename("/b", "/elsewhere"))
	for _, made := range []bool{false, true} { // the mount point itself may be missing
		if made {
			require.NoError(t, mem.MkdirAll("/b"))
		}
		h := start(t, mem, meta, config("/a", "/b"))
		h.waitFor(t, func() bool { return meta.lastBeat(2)[0].GetId() == 1 && meta.lastBeat(2)[1] == nil })
		_, err = chunk(1, 10).put(t, h)
		require.NoError(t, err)
		require.NoError(t, h.stop())
		names, err := mem.List("/b")
		if made {
			require.NoError(t, err)
		}
		require.Empty(t, names, "nothing may be written beside a disk that is not mounted")
	}

	// Without another device the server cannot start, and the error says what to
	// do.
	s, err := chunkserver.New(config("/b"), chunkserver.Deps{Meta: meta, FS: mem})
	require.NoError(t, err)
	err = s.Run(t.Context())
	require.ErrorIs(t, err, moraine.NotFound)
	require.ErrorContains(t, err, "/b")
	require.ErrorContains(t, err, "moraine device format /b")

	// Mounted again, the device keeps its identity; a manually formatted one joins.
	require.NoError(t, mem.Rename("/b", "/unused"))
	require.NoError(t, mem.Rename("/elsewhere", "/b"))
	made, err := disk.Format(mem, "/c", cluster, rand.Reader)
	require.NoError(t, err)
	h := start(t, mem, meta, config("/a", "/b", "/c"))
	h.waitFor(t, func() bool { return meta.lastBeat(3)[2] != nil })
	meta.set(func() {
		require.Equal(t, uint32(2), meta.ids[before.Device])
		require.Equal(t, uint32(3), meta.ids[made.Device])
	})
}

func TestARestartKeepsDevicesAndChunks(t *testing.T) {
	meta, mem := newFakeMeta(), vfs.NewMem(1)
	h := start(t, mem, meta, config("/a"))
	c := chunk(1, 100_000)
	_, err := c.put(t, h)
	require.NoError(t, err)
	require.NoError(t, h.stop())
	_, err = c.put(t, h)
	require.ErrorIs(t, err, moraine.Unavailable)
	require.ErrorIs(t, h.Healthy(), moraine.Unavailable)
	h = start(t, mem, meta, config("/a"))
	c.check(t, h)
	reply, err := c.put(t, h)
	require.NoError(t, err)
	require.Equal(t, uint64(2), reply.Epoch, "a new boot")
}

func TestTheServiceMayAskForARegistration(t *testing.T) {
	meta := newFakeMeta()
	h := start(t, vfs.NewMem(1), meta, config("/a"))
	require.Equal(t, moraine.Incarnation(1), h.Incarnation())
	meta.set(func() { meta.unknown, meta.raised = true, 1 }) // as after a restore from a backup
	h.waitFor(t, func() bool { return meta.epochs[1] >= 2 }) // more if an answer came too late
	h.waitFor(t, func() bool { return meta.lastBeat(1)[0].GetEpoch() >= 2 })
	require.Equal(t, moraine.Incarnation(2), h.Incarnation())
	reply, err := chunk(1, 10).put(t, h)
	require.NoError(t, err)
	require.GreaterOrEqual(t, reply.Epoch, uint64(2))
}

func TestAServiceThatIsAwayIsWaitedFor(t *testing.T) {
	meta := newFakeMeta()
	failures := 0
	meta.fault = func(req *wire.MetaRequest, done bool) error {
		if !done && (req.GetGetCluster() != nil || req.GetRegisterHost() != nil) && failures < 2 {
			failures++
			return &moraine.Error{Kind: moraine.Unavailable}
		}
		return nil
	}
	start(t, vfs.NewMem(1), meta, config("/a"))
}

func TestAnotherClustersServiceIsRefused(t *testing.T) {
	meta, mem := newFakeMeta(), vfs.NewMem(1)
	require.NoError(t, start(t, mem, meta, config("/a")).stop())
	meta.set(func() { meta.cluster[0]++ })
	s, err := chunkserver.New(config("/a"), chunkserver.Deps{Meta: meta, FS: mem})
	require.NoError(t, err)
	require.ErrorIs(t, s.Run(t.Context()), moraine.WrongCluster)
	cfg := config("/a")
	cfg.Cluster = cluster
	s, err = chunkserver.New(cfg, chunkserver.Deps{Meta: meta, FS: mem})
	require.NoError(t, err)
	require.ErrorIs(t, s.Run(t.Context()), moraine.WrongCluster)
}

// TestMemoryIsBounded has readers hold all memory. A put then waits, and continues
// when one releases its buffer.
func TestMemoryIsBounded(t *testing.T) {
	h := start(t, vfs.NewMem(1), newFakeMeta(), config("/a"))
	var releases []func()
	for n := range uint64(4) { // 64 MiB
		big := chunk(n+1, 16<<20)
		_, err := big.put(t, h)
		require.NoError(t, err)
		_, _, release, err := h.GetChunk(t.Context(), big.get(0, 16<<20))
		require.NoError(t, err)
		releases = append(releases, release)
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := chunk(9, 16<<20).put(t, h)
		waiting <- err
	}()
	select {
	case err := <-waiting:
		t.Fatalf("the put did not wait: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	for _, release := range releases {
		release()
	}
	require.NoError(t, <-waiting)
}

// TestWhatWasPutIsReadFromMemory breaks the device below a chunk that was put. The
// chunk is still served, while one that was evicted is not.
func TestWhatWasPutIsReadFromMemory(t *testing.T) {
	base := vfs.NewMem(1)
	var gone atomic.Bool
	fsys := vfs.NewFault(base, func(op vfs.Op) error {
		if gone.Load() && op.Kind == vfs.OpRead {
			return syscall.EIO
		}
		return nil
	})
	h := start(t, fsys, newFakeMeta(), config("/a"))
	first := chunk(1, 16<<20)
	for n := range uint64(9) {
		_, err := chunk(n+1, 16<<20).put(t, h)
		require.NoError(t, err)
	}
	gone.Store(true)
	last := chunk(9, 16<<20)
	reply, data, release, err := h.GetChunk(t.Context(), last.get(4096, 10_000))
	require.NoError(t, err)
	require.Equal(t, last.data[4096:14_096], data[0])
	require.Equal(t, crc.Sum(data[0]), reply.PayloadCrc)
	release()
	reply, data, release, ok := h.GetCached(t.Context(), last.get(4096, 10_000))
	require.True(t, ok)
	require.Equal(t, last.data[4096:14_096], data[0])
	require.Equal(t, crc.Sum(data[0]), reply.PayloadCrc)
	require.Equal(t, last.req.Crc, reply.Crc)
	release()
	verify, other := last.get(4096, 10_000), last.get(4096, 10_000)
	verify.Verify, other.Tenant = true, 8
	for _, req := range []*wire.GetChunk{verify, other, first.get(0, 10), last.get(0, 16<<20+1)} {
		_, _, _, ok := h.GetCached(t.Context(), req)
		require.False(t, ok, "GetChunk decides: %v", req)
	}
	_, _, _, err = h.GetChunk(t.Context(), first.get(0, 16<<20))
	require.ErrorIs(t, err, moraine.IOError)
}

func TestRunLeavesNothingRunning(t *testing.T) {
	before := goleak.IgnoreCurrent()
	h := start(t, vfs.NewMem(1), newFakeMeta(), config("/a", "/b"))
	_, err := chunk(1, 1000).put(t, h)
	require.NoError(t, err)
	require.NoError(t, h.stop())
	// The index of a device that another test broke and abandoned retries for ever.
	goleak.VerifyNone(t, before, goleak.IgnoreAnyFunction("github.com/morainefs/moraine/tiers/disk.(*index).backgroundError"))
}

func TestBadConfigsAreRefused(t *testing.T) {
	for name, change := range map[string]func(c *chunkserver.Config){
		"no node":        func(c *chunkserver.Config) { c.Node = "" },
		"no address":     func(c *chunkserver.Config) { c.Addresses = nil },
		"no device":      func(c *chunkserver.Config) { c.Devices = nil },
		"a device twice": func(c *chunkserver.Config) { c.Devices = append(c.Devices, c.Devices[0]) },
		"too little":     func(c *chunkserver.Config) { c.MemoryBytes = 1 << 20 },
	} {
		cfg := config("/a")
		change(&cfg)
		_, err := chunkserver.New(cfg, chunkserver.Deps{Meta: newFakeMeta()})
		require.ErrorIs(t, err, moraine.InvalidArgument, name)
	}
	_, err := chunkserver.New(config("/a"), chunkserver.Deps{})
	require.ErrorIs(t, err, moraine.InvalidArgument)
}

// The host does not follow a metadata service of a superseded incarnation, even
// after a restart: it deletes nothing for it, and does not register with it.
func TestASupersededIncarnationIsNotFollowed(t *testing.T) {
	disk, meta := vfs.NewMem(1), newFakeMeta()
	h := start(t, disk, meta, config("/d1", "/d2"))
	c := chunk(7, 100_000)
	_, err := c.put(t, h)
	require.NoError(t, err)
	ours, others := make([]byte, 16), make([]byte, 16)
	ours[0], others[0] = 9, 8
	meta.set(func() { meta.raised, meta.mark = 2, ours })
	h.waitFor(t, func() bool { return h.NewestIncarnation().Number == 3 })
	for _, old := range []func(){
		func() { meta.raised, meta.mark = 1, nil },
		func() { meta.raised, meta.mark = 2, others }, // the same number, assigned twice
	} {
		from := 0
		meta.set(func() {
			old()
			for id := range meta.epochs {
				meta.deaths[id] = []*wire.Deletion{{Device: id, Stripe: 7, Index: c.req.Index, Below: 100}}
			}
			meta.beats, meta.unknown = nil, true
		})
		h.waitFor(t, func() bool { return len(meta.beats) > from+3 })
		require.Error(t, h.Healthy(), "the service is none of ours")
		meta.set(func() {
			require.EqualValues(t, 3, meta.beats[2].SeenIncarnation, "it reports the newest incarnation")
			require.Equal(t, ours, meta.beats[2].SeenMark)
			require.Empty(t, meta.acked)
			require.True(t, meta.unknown, "it does not register there")
		})
		c.check(t, h)
	}
	require.NoError(t, h.stop())

	again, err := chunkserver.New(config("/d1", "/d2"), chunkserver.Deps{Meta: meta, FS: disk})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- again.Run(ctx) }()
	h = &host{Server: again, meta: meta}
	asked := 0
	meta.set(func() { asked = meta.requests })
	h.waitFor(t, func() bool { return meta.requests > asked+2 })
	require.EqualValues(t, 3, again.NewestIncarnation().Number, "a restart does not forget")
	select {
	case <-again.Ready():
		t.Error("it accepts requests under a metadata service of a superseded incarnation")
	default:
	}
	meta.set(func() { meta.raised, meta.mark, meta.deaths = 2, ours, map[uint32][]*wire.Deletion{} })
	<-again.Ready()
	c.check(t, h)
	cancel()
	require.NoError(t, <-ended)
}
