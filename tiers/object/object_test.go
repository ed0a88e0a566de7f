package object_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/tiers/object/objecttest"
	"github.com/morainefs/moraine/tiers/object/s3test"
)

func TestMain(m *testing.M) { os.Exit(s3test.Main(m)) }

func TestBucketKeepsItsContract(t *testing.T) {
	objecttest.Run(t, func(t *testing.T) objecttest.Store {
		s := s3test.Start(t)
		return s.Open(t, s.Endpoint)
	})
}

func TestBucketWithoutChecksumsKeepsItsContract(t *testing.T) {
	s := s3test.Start(t)
	cfg := s.Config(t, s.Endpoint)
	cfg.NoChecksums = true
	b, err := object.New(cfg, object.Deps{})
	require.NoError(t, err)
	data := bytes.Repeat([]byte("0123456789abcdef"), 500_000)
	info := objecttest.Put(t, b, cfg.Prefix+"/k", data, 5<<20, nil)
	require.False(t, info.HasCRC)
}

func TestMemoryKeepsTheContract(t *testing.T) {
	objecttest.Run(t, func(t *testing.T) objecttest.Store { return objecttest.NewMemory() })
}

// TestCopyInParts copies an object above a lowered copy limit.
func TestCopyInParts(t *testing.T) {
	s := s3test.Start(t)
	cfg := s.Config(t, s.Endpoint)
	cfg.CopyLimit = 20 << 20
	b, err := object.New(cfg, object.Deps{})
	require.NoError(t, err)
	data := bytes.Repeat([]byte("0123456789abcdef"), 23<<16)
	from := objecttest.Put(t, b, cfg.Prefix+"/from", data, 8<<20, map[string]string{"file-owner": "7"})
	to, err := b.Copy(t.Context(), from.Ref, from.Size, cfg.Prefix+"/to")
	require.NoError(t, err)
	got := make([]byte, len(data))
	require.NoError(t, b.Get(t.Context(), to.Ref, 0, got))
	require.True(t, bytes.Equal(data, got))
	head, err := b.Head(t.Context(), to.Ref)
	require.NoError(t, err)
	require.Equal(t, "7", head.Meta["file-owner"])
}

// TestOutcomes compares the reported outcome of a failed request with its effect.
func TestOutcomes(t *testing.T) {
	s := s3test.Start(t)
	p := s3test.NewProxy(t, s.Endpoint)
	b, direct := s.Open(t, p.URL), s.Open(t, s.Endpoint)
	for _, c := range []struct {
		fault   s3test.Fault
		kind    moraine.Kind
		refused bool
		done    bool
	}{
		{s3test.Refuse, moraine.PermissionDenied, true, false},
		{s3test.Fail, moraine.Unavailable, false, false},
		{s3test.FailAfter, moraine.Unavailable, false, true},
		{s3test.Lose, moraine.Unavailable, false, true},
		{s3test.Drop, moraine.Unavailable, false, false},
	} {
		key := b.Prefix() + "/k"
		objecttest.Put(t, direct, key, []byte("bytes"), 5<<20, nil)
		fired := p.Once("delete", c.fault)
		err := b.Delete(t.Context(), object.Ref{Key: key})
		require.ErrorIs(t, err, c.kind)
		require.Equal(t, c.refused, object.Refused(err), "%v", err)
		require.True(t, fired())
		_, err = direct.Head(t.Context(), object.Ref{Key: key})
		require.Equal(t, c.done, err != nil)
	}
}

// unreachable makes the connection of requests of one op fail.
type unreachable struct{ op string }

func (u *unreachable) RoundTrip(r *http.Request) (*http.Response, error) {
	if s3test.OpOf(r) == u.op {
		return nil, &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	}
	return http.DefaultTransport.RoundTrip(r)
}

// TestACopyThatWasMadeIsNotRefused makes the store unreachable after a copy, or
// after the upload of a copy in parts.
func TestACopyThatWasMadeIsNotRefused(t *testing.T) {
	s := s3test.Start(t)
	for op, size := range map[string]int{"head": 5, "copy_part": 6 << 20} {
		cfg := s.Config(t, s.Endpoint)
		cfg.CopyLimit = 5 << 20
		src := objecttest.Put(t, s.Open(t, s.Endpoint), cfg.Prefix+"/"+op, bytes.Repeat([]byte("x"), size), 5<<20, nil)
		away := &unreachable{op: op}
		b, err := object.New(cfg, object.Deps{Transport: away})
		require.NoError(t, err)
		_, err = b.Copy(t.Context(), src.Ref, int64(size), cfg.Prefix+"/copy-"+op)
		require.ErrorIs(t, err, moraine.Unavailable)
		// The copy in parts was aborted and left nothing.
		require.Equal(t, op == "copy_part", object.Refused(err), "%v", err)
		ids, err := b.Uploads(t.Context(), cfg.Prefix+"/copy-"+op)
		require.NoError(t, err)
		require.Empty(t, ids)
	}
}

func TestNothingIsSentTwice(t *testing.T) {
	s := s3test.Start(t)
	p := s3test.NewProxy(t, s.Endpoint)
	b := s.Open(t, p.URL)
	var requests atomic.Int32
	p.Set(func(*http.Request) s3test.Fault { requests.Add(1); return s3test.Fail })
	_, err := b.NewUpload(t.Context(), b.Prefix()+"/k", nil)
	require.ErrorIs(t, err, moraine.Unavailable)
	_, err = b.Head(t.Context(), object.Ref{Key: b.Prefix() + "/k"})
	require.ErrorIs(t, err, moraine.Unavailable)
	require.Equal(t, int32(2), requests.Load())
}

func TestCutRepliesAreErrors(t *testing.T) {
	s := s3test.Start(t)
	p := s3test.NewProxy(t, s.Endpoint)
	b := s.Open(t, p.URL)
	data := bytes.Repeat([]byte("x"), 1<<20)
	info := objecttest.Put(t, b, b.Prefix()+"/k", data, 5<<20, nil)
	fired := p.Once("get", s3test.CutReply)
	err := b.Get(t.Context(), info.Ref, 0, make([]byte, len(data)))
	require.ErrorIs(t, err, moraine.Unavailable)
	require.True(t, fired())
}

func TestCutPartsAreNotTaken(t *testing.T) {
	s := s3test.Start(t)
	p := s3test.NewProxy(t, s.Endpoint)
	b := s.Open(t, p.URL)
	key := b.Prefix() + "/k"
	id, err := b.NewUpload(t.Context(), key, nil)
	require.NoError(t, err)
	data := bytes.Repeat([]byte("x"), 1<<20)
	fired := p.Once("put_part", s3test.CutRequest)
	_, err = b.PutPart(t.Context(), key, id, 1, data, crc.Sum(data))
	require.ErrorIs(t, err, moraine.Unavailable)
	require.False(t, object.Refused(err))
	require.True(t, fired())
}

func TestTheCallerMayGiveUp(t *testing.T) {
	s := s3test.Start(t)
	p := s3test.NewProxy(t, s.Endpoint)
	b := s.Open(t, p.URL)
	ctx, cancel := context.WithCancel(t.Context())
	p.Set(func(*http.Request) s3test.Fault { cancel(); return s3test.Hang })
	_, err := b.Head(ctx, object.Ref{Key: b.Prefix() + "/k"})
	require.ErrorIs(t, err, moraine.Canceled)
	require.False(t, object.Refused(err))
}

// TestTheFenceStopsABodyInTheMiddle lets the lease expire while a part is sent.
func TestTheFenceStopsABodyInTheMiddle(t *testing.T) {
	s := s3test.Start(t)
	b := s.Open(t, s.Endpoint)
	key := b.Prefix() + "/k"
	id, err := b.NewUpload(t.Context(), key, nil)
	require.NoError(t, err)
	var asked atomic.Int32
	ctx := object.WithFence(t.Context(), func() error {
		if asked.Add(1) > 3 {
			return moraine.Fenced
		}
		return nil
	})
	data := bytes.Repeat([]byte("x"), 8<<20)
	_, err = b.PutPart(ctx, key, id, 1, data, crc.Sum(data))
	require.ErrorIs(t, err, moraine.Fenced)
	require.False(t, object.Refused(err))
	_, err = b.Complete(t.Context(), key, id, []object.Part{{ETag: "x"}}, 0, false, object.Condition{})
	require.Error(t, err)
}

func TestNobodyListens(t *testing.T) {
	b, err := object.New(object.Config{Bucket: "b-ucket", Endpoint: "http://127.0.0.1:1", AccessKey: "a", SecretKey: "s"}, object.Deps{})
	require.NoError(t, err)
	err = b.Delete(t.Context(), object.Ref{Key: "k"})
	require.ErrorIs(t, err, moraine.Unavailable)
	require.True(t, object.Refused(err), "nothing was sent")
}

func TestWrongKeysAreSaid(t *testing.T) {
	s := s3test.Start(t)
	cfg := s.Config(t, s.Endpoint)
	require.NoError(t, s.Open(t, s.Endpoint).Probe(t.Context()))
	cfg.SecretKey = "wrong"
	b, err := object.New(cfg, object.Deps{})
	require.NoError(t, err)
	require.ErrorIs(t, b.Probe(t.Context()), moraine.PermissionDenied)
	cfg = s.Config(t, s.Endpoint)
	cfg.Bucket = "no-such-bucket"
	b, err = object.New(cfg, object.Deps{})
	require.NoError(t, err)
	require.ErrorIs(t, b.Probe(t.Context()), moraine.NotFound)
}

func TestSettings(t *testing.T) {
	for url, want := range map[string][2]string{"s3://b": {"b", ""}, "s3://b/": {"b", ""}, "s3://b/p/q/": {"b", "p/q"}} {
		bucket, prefix, err := object.ParseURL(url)
		require.NoError(t, err)
		require.Equal(t, want, [2]string{bucket, prefix})
	}
	for _, url := range []string{"", "b/p", "s3://", "s3:///p", "s3://b/p//q", "https://b"} {
		_, _, err := object.ParseURL(url)
		require.ErrorIs(t, err, moraine.InvalidArgument, url)
	}
	for _, cfg := range []object.Config{{}, {Bucket: "b", Endpoint: "host:9000"}, {Bucket: "b", Endpoint: "http://host/path"},
		{Bucket: "b", Prefix: "/p"}, {Bucket: "b", CopyLimit: 1}} {
		_, err := object.New(cfg, object.Deps{})
		require.ErrorIs(t, err, moraine.InvalidArgument)
	}
}

func TestPredictETag(t *testing.T) {
	require.Equal(t, "bb7b5c2ab3f1c4da5bd2d0c7e9e5a0e2-1"[32:], object.PredictETag([]object.Part{{ETag: "9a0364b9e99bb480dd25e1f0284c8555"}})[32:])
	require.Empty(t, object.PredictETag([]object.Part{{ETag: "CRC64NVME-abc"}}))
}

func TestKeysAreMadeOnceAndKeptFromOthers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a", "keys")
	keys, err := object.LoadKeys(file)
	require.NoError(t, err)
	require.Len(t, keys.Access, 19)
	require.Len(t, keys.Secret, 48)
	again, err := object.LoadKeys(file)
	require.NoError(t, err)
	require.Equal(t, keys, again)
	require.NoError(t, os.Chmod(file, 0o644))
	_, err = object.LoadKeys(file)
	require.ErrorIs(t, err, moraine.PermissionDenied)
	require.NoError(t, os.Chmod(file, 0o600))
	require.NoError(t, os.WriteFile(file, []byte("half"), 0o600))
	_, err = object.LoadKeys(file)
	require.ErrorIs(t, err, moraine.Corrupt)
}

// The probe determines what a real store supports, and leaves nothing behind.
func TestTraitsOfARealStore(t *testing.T) {
	s := s3test.Start(t)
	b := s.Open(t, s.Endpoint)
	_, known := b.Known()
	require.False(t, known)
	traits, err := b.Traits(t.Context())
	require.NoError(t, err)
	require.Equal(t, object.Traits{WholeCRC: true, IfNoneMatch: true, IfMatch: true, IfMatchDelete: true}, traits)
	_, known = b.Known()
	require.True(t, known)
	cfg := s.Config(t, s.Endpoint)
	cfg.NoChecksums = true
	plain, err := object.New(cfg, object.Deps{})
	require.NoError(t, err)
	traits, err = plain.Traits(t.Context())
	require.NoError(t, err)
	require.Equal(t, object.Traits{IfNoneMatch: true, IfMatch: true, IfMatchDelete: true}, traits)
}
