package chunkserver_test

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/chunkserver"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/tiers/object/objecttest"
	"github.com/morainefs/moraine/tiers/tiertest"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/capability/capabilitytest"
	"github.com/morainefs/moraine/transport/wire"
)

const testPiece = 1 << 20

// shelf is an object of a little more than three pieces, in a bucket and recorded.
type shelf struct {
	*host
	bucket *objecttest.Memory
	meta   *fakeMeta
	data   []byte
}

func startWithBucket(t *testing.T, change func(cfg *chunkserver.Config)) *shelf {
	t.Helper()
	return startShelf(t, change, nil)
}

// startShelf is startWithBucket that writes to a log, unless that is nil.
func startShelf(t *testing.T, change func(cfg *chunkserver.Config), log *slog.Logger) *shelf {
	t.Helper()
	b, meta := objecttest.NewMemory(), newFakeMeta()
	sh := &shelf{bucket: b, meta: meta, data: make([]byte, 3*testPiece+777)}
	tiertest.Fill(sh.data, 9)
	info := objecttest.Put(t, b, "tier/f", sh.data, testPiece, nil)
	o := &wire.Object{Id: 5, Bucket: "memory", Key: "tier/f", Etag: info.ETag, Size: uint64(len(sh.data)), Crc: crc.Sum(sh.data), Piece: testPiece, Tenant: 7, Inode: 11}
	meta.objects = map[uint64]*wire.ObjectReply{5: {Object: o, Sums: sumsOf(sh.data)}}
	cfg := config("/a")
	cfg.Bucket = "s3://memory/tier"
	if change != nil {
		change(&cfg)
	}
	sh.host = startDeps(t, meta, cfg, chunkserver.Deps{Meta: meta, FS: vfs.NewMem(1), Bucket: b, Log: log})
	return sh
}

func sumsOf(data []byte) (sums []uint32) {
	for off := 0; off < len(data); off += testPiece {
		sums = append(sums, crc.Sum(data[off:min(off+testPiece, len(data))]))
	}
	return sums
}

func (s *shelf) read(ctx context.Context, t *testing.T, off, n int) error {
	reply, payload, release, err := s.GetPiece(ctx, &wire.GetPiece{Object: 5, Inode: 11, Offset: uint64(off), Length: uint64(n)})
	if err != nil {
		return err
	}
	defer release()
	require.Len(t, payload, 1)
	require.Equal(t, crc.Sum(s.data[off:off+n]), crc.Sum(payload[0]))
	require.Equal(t, crc.Sum(payload[0]), reply.PayloadCrc)
	return nil
}

func TestPiecesAreServed(t *testing.T) {
	s := startWithBucket(t, nil)
	for _, r := range [][2]int{{0, testPiece}, {1, 10}, {testPiece - 1, 1}, {testPiece, testPiece}, {3 * testPiece, 777}, {3*testPiece + 7, 70}} {
		require.NoError(t, s.read(t.Context(), t, r[0], r[1]))
	}
	for _, r := range [][2]int{{testPiece - 1, 2}, {0, testPiece + 1}, {3 * testPiece, 778}, {5 * testPiece, 1}, {0, 0}, {0, 17 << 20}} {
		require.ErrorIs(t, s.read(t.Context(), t, r[0], r[1]), moraine.InvalidArgument)
	}
	require.Equal(t, "s3://memory/tier", s.meta.lastHost().GetBucket())
}

// TestARottenPieceIsFound flips a bit of a piece in memory. The reply's checksum
// shows the damage, and a caller with verify gets the right bytes, read again.
func TestARottenPieceIsFound(t *testing.T) {
	s := startWithBucket(t, nil)
	get := func(off, n int, verify bool) (sum uint32, data []byte, release func()) {
		reply, payload, release, err := s.GetPiece(t.Context(), &wire.GetPiece{Object: 5, Inode: 11, Offset: uint64(off), Length: uint64(n), Verify: verify})
		require.NoError(t, err)
		return reply.PayloadCrc, payload[0], release
	}
	const at = 8*moraine.BlockSize + 5
	for _, r := range [][2]int{{0, testPiece}, {4 * moraine.BlockSize, 8 * moraine.BlockSize}, {at - 7, 100}, {moraine.BlockSize + 1, 20 * moraine.BlockSize}} {
		_, data, release := get(at, 1, true)
		data[0] ^= 4 // this is the server's memory
		release()
		sum, data, release := get(r[0], r[1], false)
		wrong := crc.Sum(data) == sum && !bytes.Equal(data, s.data[r[0]:r[0]+r[1]])
		require.False(t, wrong, "wrong bytes are served with a sum that fits them, %d at %d", r[1], r[0])
		release()
		sum, data, release = get(r[0], r[1], true)
		require.Equal(t, crc.Sum(data), sum)
		require.True(t, bytes.Equal(data, s.data[r[0]:r[0]+r[1]]))
		release()
	}
}

// TestManyReadersCostOneGet delays the bucket's answer until all readers wait.
func TestManyReadersCostOneGet(t *testing.T) {
	s := startWithBucket(t, nil)
	var gets atomic.Int32
	open := make(chan struct{})
	s.bucket.SetHook(func(_ context.Context, op, _ string) (func(error) error, error) {
		if op == "get" {
			gets.Add(1)
			<-open
		}
		return nil, nil
	})
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() { require.NoError(t, s.read(t.Context(), t, i, 100)) })
	}
	// A reader that stops waiting does not take the piece from the others.
	gone, cancel := context.WithCancel(t.Context())
	gave := make(chan error, 1)
	go func() { gave <- s.read(gone, t, 0, 1) }()
	cancel()
	require.Error(t, <-gave) // before the piece arrives: after that even a cancelled read succeeds
	close(open)
	wg.Wait()
	require.Equal(t, int32(1), gets.Load())
	s.waitFor(t, func() bool { return len(s.meta.staged) > 0 })
	s.meta.set(func() { require.Equal(t, []uint64{11}, s.meta.staged, "staged once") })
}

// A reader whose deadline passes while the bucket is silent fails with Timeout, and the log
// names what it waited for.
func TestAPieceThatDoesNotComeInTimeIsReported(t *testing.T) {
	var log syncedLog
	s := startShelf(t, nil, slog.New(slog.NewTextHandler(&log, nil)))
	open := make(chan struct{})
	s.bucket.SetHook(func(_ context.Context, op, _ string) (func(error) error, error) {
		if op == "get" {
			<-open
		}
		return nil, nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.Equal(t, moraine.Timeout, moraine.KindOf(s.read(ctx, t, 0, 1)))
	close(open)
	require.Contains(t, log.String(), `msg="resource wait exceeded" resource="piece that is being read from the bucket"`)
	require.NoError(t, s.read(t.Context(), t, 0, 1))
}

// syncedLog is what a server has logged.
type syncedLog struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *syncedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *syncedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func TestChunkserversDoNotHaveFilesStaged(t *testing.T) {
	s := startWithBucket(t, nil)
	ctx := transport.WithPeer(t.Context(), &transport.Peer{Role: transport.RoleChunkserver, Node: "n2"})
	require.ErrorIs(t, s.read(ctx, t, 0, 1), moraine.PermissionDenied, "it is for no job of its own")
	_, _, release, err := s.GetPiece(ctx, &wire.GetPiece{Object: 5, Inode: 11, Length: 1, Capability: capabilitytest.Sign(cluster,
		&wire.CapabilityClaims{Node: "n2", Right: wire.CapabilityRight_CAPABILITY_RIGHT_READ, Inode: 11, Objects: []*wire.ObjectRange{{Object: 5, Length: 1}}})})
	require.NoError(t, err)
	release()
	require.NoError(t, s.read(t.Context(), t, 0, 1))
	s.waitFor(t, func() bool { return len(s.meta.staged) > 0 })
	s.meta.set(func() { require.Len(t, s.meta.staged, 1) })
}

func TestReadsOfALostObjectFail(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(s *shelf)
		kind  moraine.Kind
	}{
		"deleted":     {func(s *shelf) { _ = s.bucket.Delete(context.Background(), refOf("tier/f")) }, moraine.Lost},
		"overwritten": {func(s *shelf) { s.bucket.Put("tier/f", s.data) }, moraine.Lost},
		"spoilt":      {func(s *shelf) { s.bucket.Spoil("tier/f") }, moraine.Corrupt},
		"unavailable": {func(s *shelf) {
			s.bucket.SetHook(func(context.Context, string, string) (func(error) error, error) {
				return nil, objecttest.Failure(moraine.Unavailable, false)
			})
		}, moraine.Unavailable},
		"no record": {func(s *shelf) { s.meta.set(func() { delete(s.meta.objects, 5) }) }, moraine.Stale},
	} {
		t.Run(name, func(t *testing.T) {
			s := startWithBucket(t, nil)
			c.spoil(s)
			middle := len(s.data)/2 - 10
			require.ErrorIs(t, s.read(t.Context(), t, middle, 20), c.kind)
		})
	}
}

// TestAMovedObjectIsFound moves the object to another key after its record was
// read.
func TestAMovedObjectIsFound(t *testing.T) {
	s := startWithBucket(t, nil)
	require.NoError(t, s.read(t.Context(), t, 0, 1))
	info, err := s.bucket.Copy(t.Context(), refOf("tier/f"), int64(len(s.data)), "tier/kept")
	require.NoError(t, err)
	require.NoError(t, s.bucket.Delete(t.Context(), refOf("tier/f")))
	s.meta.set(func() {
		o := s.meta.objects[5].Object
		s.meta.objects[5] = &wire.ObjectReply{Sums: sumsOf(s.data), Object: &wire.Object{Id: 5, Key: "tier/kept", Etag: info.ETag,
			Size: o.Size, Piece: o.Piece, Tenant: o.Tenant}}
	})
	require.NoError(t, s.read(t.Context(), t, testPiece, 100))
}

// TestAFailureIsNotKept: the next caller retries.
func TestAFailureIsNotKept(t *testing.T) {
	s := startWithBucket(t, nil)
	s.bucket.SetHook(func(context.Context, string, string) (func(error) error, error) {
		return nil, objecttest.Failure(moraine.Unavailable, false)
	})
	require.ErrorIs(t, s.read(t.Context(), t, 0, 1), moraine.Unavailable)
	s.bucket.SetHook(nil)
	require.NoError(t, s.read(t.Context(), t, 0, 1))
}

// TestPiecesAreBounded reads more than fits in memory, many pieces concurrently.
func TestPiecesAreBounded(t *testing.T) {
	s := startWithBucket(t, func(cfg *chunkserver.Config) { cfg.PieceBytes = 32 << 20 })
	big := make([]byte, 5*16<<20)
	tiertest.Fill(big, 3)
	info := objecttest.Put(t, s.bucket, "tier/big", big, len(big), nil)
	var sums []uint32
	for off := 0; off < len(big); off += 16 << 20 {
		sums = append(sums, crc.Sum(big[off:off+16<<20]))
	}
	s.meta.set(func() {
		s.meta.objects[6] = &wire.ObjectReply{Sums: sums, Object: &wire.Object{Id: 6, Key: "tier/big", Etag: info.ETag,
			Size: uint64(len(big)), Piece: 16 << 20, Tenant: 7}}
	})
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			off := uint64(i%5)*16<<20 + 5
			_, payload, release, err := s.GetPiece(t.Context(), &wire.GetPiece{Object: 6, Offset: off, Length: 1000})
			require.NoError(t, err)
			defer release()
			require.Equal(t, crc.Sum(big[off:off+1000]), crc.Sum(payload[0]))
		})
	}
	wg.Wait()
}

func TestPiecesNeedTheRightTenant(t *testing.T) {
	s := startWithBucket(t, nil)
	for name, c := range map[string]struct {
		peer *transport.Peer
		kind moraine.Kind
	}{
		"a session of the root": {&transport.Peer{Role: transport.RoleClient, Token: &wire.TokenClaims{AllTenants: true, ReadOnly: true}}, 0},
		"another tenant":        {&transport.Peer{Role: transport.RoleClient, Token: &wire.TokenClaims{Tenants: []uint32{8}}}, moraine.PermissionDenied},
		"no token":              {&transport.Peer{Role: transport.RoleClient}, moraine.Unauthenticated},
	} {
		requireKind(t, c.kind, s.read(transport.WithPeer(t.Context(), c.peer), t, 0, 1), name)
	}
}

// TestPiecesNeedACapability: a session that is confined to a directory reads an
// object only as content of a file that it may read. That file is staged, and no
// other. The session cannot learn whether an object number exists.
func TestPiecesNeedACapability(t *testing.T) {
	s := startWithBucket(t, nil)
	s.meta.set(func() { s.meta.tenants = map[uint64]uint32{12: 7, 13: 7} })
	confined := as(t, session, false)
	get := func(object, inode uint64, capability []byte) error {
		_, _, release, err := s.GetPiece(confined, &wire.GetPiece{Object: object, Inode: inode, Length: 1, Capability: capability})
		if err == nil {
			release()
		}
		return err
	}
	permit := func(session, object uint64) []byte {
		return capabilitytest.Sign(cluster, &wire.CapabilityClaims{Session: session, Right: wire.CapabilityRight_CAPABILITY_RIGHT_READ,
			Objects: []*wire.ObjectRange{{Object: object, Offset: 0, Length: 1}}, Inode: 12})
	}
	for name, err := range map[string]error{
		"none":              get(5, 12, nil),
		"another object":    get(5, 12, permit(session, 6)),
		"no object":         get(6, 12, permit(session, 5)),
		"another session's": get(5, 12, permit(session+1, 5)),
		"another file":      get(5, 13, permit(session, 5)),
		"no file":           get(5, 99, permit(session, 5)),
		"of stripes":        get(5, 12, chunk(1, 1).req.Capability),
	} {
		require.ErrorIs(t, err, moraine.PermissionDenied, name)
	}
	for _, r := range [][2]uint64{{0, 2}, {1, 1}, {1, 0}} {
		_, _, _, err := s.GetPiece(confined, &wire.GetPiece{Object: 5, Inode: 12, Offset: r[0], Length: r[1], Capability: permit(session, 5)})
		require.Error(t, err, "bytes that its file does not have: %v", r)
		if r[1] > 0 {
			require.ErrorIs(t, err, moraine.PermissionDenied)
		}
	}
	require.NoError(t, get(5, 12, permit(session, 5)))
	s.waitFor(t, func() bool { return len(s.meta.staged) > 0 }) // requests are sent in their order
	s.meta.set(func() { require.Equal(t, []uint64{12}, s.meta.staged) })
}

// A reader of everything names the file that it reads, to have it staged. It may
// name a clone, which shares the object, but no file of another tenant.
func TestFilesOfOtherTenantsAreNotStaged(t *testing.T) {
	s := startWithBucket(t, nil)
	s.meta.set(func() { s.meta.tenants = map[uint64]uint32{12: 7, 13: 8} })
	for _, inode := range []uint64{13, 99, 12} { // another tenant's, a missing one, a clone
		_, _, release, err := s.GetPiece(as(t, session, true), &wire.GetPiece{Object: 5, Inode: inode, Length: 1})
		require.NoError(t, err, "the bytes are those of the object, whatever else is named")
		release()
	}
	s.waitFor(t, func() bool { return len(s.meta.staged) > 0 }) // requests are sent in their order
	s.meta.set(func() { require.Equal(t, []uint64{12}, s.meta.staged) })
}

func TestAHostWithoutABucketSaysSo(t *testing.T) {
	h := start(t, vfs.NewMem(1), newFakeMeta(), config("/a"))
	_, _, _, err := h.GetPiece(t.Context(), &wire.GetPiece{Object: 5, Length: 1})
	require.ErrorIs(t, err, moraine.Unavailable)
}

func refOf(key string) object.Ref { return object.Ref{Key: key} }
