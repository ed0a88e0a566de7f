package objecttest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/tiers/object"
)

// Run tests a bucket against its contract. open returns an empty one.
func Run(t *testing.T, open func(t *testing.T) Store) {
	for name, test := range map[string]func(t *testing.T, s Store){
		"upload": testUpload, "empty object": testEmpty, "overwrite": testOverwrite, "ranges": testRanges,
		"abort": testAbort, "uploads of exactly one key": testUploads, "wrong sums": testSums, "conditions": testConditions,
		"copy": testCopy, "delete": testDelete, "keys": testKeys, "fence": testFence, "repeats": testRepeats,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

func random(n int) []byte {
	data := make([]byte, n)
	rng := rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16)})
	_, _ = rng.Read(data)
	return data
}

func key(s Store, name string) string { return s.Prefix() + "/" + name }

// Put uploads data in parts of a given length, and returns the store's description
// of it.
func Put(t testing.TB, s Store, key string, data []byte, partLen int, meta map[string]string) object.Info {
	t.Helper()
	ctx := t.Context()
	id, err := s.NewUpload(ctx, key, meta)
	require.NoError(t, err)
	var parts []object.Part
	for off := 0; off == 0 || off < len(data); off += partLen {
		piece := data[off:min(off+partLen, len(data))]
		p, err := s.PutPart(ctx, key, id, len(parts)+1, piece, crc.Sum(piece))
		require.NoError(t, err)
		require.NotEmpty(t, p.ETag)
		parts = append(parts, p)
	}
	done, err := s.Complete(ctx, key, id, parts, crc.Sum(data), true, object.Condition{})
	require.NoError(t, err)
	if want := object.PredictETag(parts); want != "" {
		require.Equal(t, want, done.ETag)
	}
	info, err := s.Head(ctx, object.Ref{Key: key})
	require.NoError(t, err)
	require.Equal(t, done.ETag, info.ETag)
	require.Equal(t, int64(len(data)), info.Size)
	if info.HasCRC {
		require.Equal(t, crc.Sum(data), info.CRC)
	}
	return info
}

func requireBytes(t *testing.T, s Store, r object.Ref, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	require.NoError(t, s.Get(t.Context(), r, 0, got))
	require.True(t, bytes.Equal(want, got))
}

func testUpload(t *testing.T, s Store) {
	for _, n := range []int{1, 4096, 5 << 20, 5<<20 + 1, 11 << 20} {
		data := random(n)
		info := Put(t, s, key(s, "dir/file"), data, 5<<20, map[string]string{"file-owner": "1000", "moraine-upload": "1-2-3-4"})
		require.Equal(t, "1000", info.Meta["file-owner"])
		require.Equal(t, "1-2-3-4", info.Meta["moraine-upload"])
		requireBytes(t, s, info.Ref, data)
	}
}

func testEmpty(t *testing.T, s Store) {
	info := Put(t, s, key(s, "empty"), nil, 5<<20, nil)
	require.Zero(t, info.Size)
}

func testOverwrite(t *testing.T, s Store) {
	first := Put(t, s, key(s, "k"), random(100), 5<<20, nil)
	second := Put(t, s, key(s, "k"), random(200), 5<<20, nil)
	require.NotEqual(t, first.ETag, second.ETag)
	err := s.Get(t.Context(), object.Ref{Key: first.Key, ETag: first.ETag}, 0, make([]byte, 10))
	require.ErrorIs(t, err, moraine.Conflict)
	requireBytes(t, s, object.Ref{Key: second.Key, ETag: second.ETag}, random(200))
}

func testRanges(t *testing.T, s Store) {
	data := random(1 << 20)
	info := Put(t, s, key(s, "k"), data, 5<<20, nil)
	for _, r := range [][2]int{{0, 1}, {1<<20 - 1, 1}, {4095, 8192}, {0, 1 << 20}} {
		got := make([]byte, r[1])
		require.NoError(t, s.Get(t.Context(), info.Ref, int64(r[0]), got))
		require.True(t, bytes.Equal(data[r[0]:r[0]+r[1]], got))
	}
	require.Error(t, s.Get(t.Context(), info.Ref, 1<<20-1, make([]byte, 2)), "never short")
	require.Error(t, s.Get(t.Context(), info.Ref, 1<<20, make([]byte, 1)))
}

func testAbort(t *testing.T, s Store) {
	ctx := t.Context()
	id, err := s.NewUpload(ctx, key(s, "k"), nil)
	require.NoError(t, err)
	part, err := s.PutPart(ctx, key(s, "k"), id, 1, []byte("x"), crc.Sum([]byte("x")))
	require.NoError(t, err)
	require.NoError(t, s.Abort(ctx, key(s, "k"), id))
	err = s.Abort(ctx, key(s, "k"), id)
	if err != nil { // some stores repeat the first answer
		require.ErrorIs(t, err, moraine.NotFound)
	}
	_, err = s.Complete(ctx, key(s, "k"), id, []object.Part{part}, 0, false, object.Condition{})
	require.Error(t, err)
	require.True(t, object.Refused(err))
	_, err = s.PutPart(ctx, key(s, "k"), id, 1, []byte("x"), crc.Sum([]byte("x")))
	require.ErrorIs(t, err, moraine.NotFound)
	_, err = s.Head(ctx, object.Ref{Key: key(s, "k")})
	require.ErrorIs(t, err, moraine.NotFound)
	require.True(t, object.Refused(err))
}

func testUploads(t *testing.T, s Store) {
	ctx := t.Context()
	var want []string
	for _, name := range []string{"a", "a", "ab", "a/b", "b"} {
		id, err := s.NewUpload(ctx, key(s, name), nil)
		require.NoError(t, err)
		if name == "a" {
			want = append(want, id)
		}
	}
	got, err := s.Uploads(ctx, key(s, "a"))
	require.NoError(t, err)
	require.ElementsMatch(t, want, got)
	for _, id := range got {
		require.NoError(t, s.Abort(ctx, key(s, "a"), id))
	}
	got, err = s.Uploads(ctx, key(s, "a"))
	require.NoError(t, err)
	require.Empty(t, got)
}

func testSums(t *testing.T, s Store) {
	ctx := t.Context()
	id, err := s.NewUpload(ctx, key(s, "k"), nil)
	require.NoError(t, err)
	_, err = s.PutPart(ctx, key(s, "k"), id, 1, []byte("bytes"), 77)
	require.ErrorIs(t, err, moraine.Corrupt)
	part, err := s.PutPart(ctx, key(s, "k"), id, 1, []byte("bytes"), crc.Sum([]byte("bytes")))
	require.NoError(t, err)
	_, err = s.Complete(ctx, key(s, "k"), id, []object.Part{part}, 77, true, object.Condition{})
	require.Error(t, err)
	_, err = s.Head(ctx, object.Ref{Key: key(s, "k")})
	require.ErrorIs(t, err, moraine.NotFound)
}

func testConditions(t *testing.T, s Store) {
	info := Put(t, s, key(s, "k"), random(10), 5<<20, nil)
	other := object.Ref{Key: info.Key, ETag: "0123456789abcdef0123456789abcdef-1"}
	_, err := s.Head(t.Context(), other)
	require.ErrorIs(t, err, moraine.Conflict)
	require.True(t, object.Refused(err))
	_, err = s.Copy(t.Context(), other, 10, key(s, "copy"))
	require.ErrorIs(t, err, moraine.Conflict)
	_, err = s.Head(t.Context(), object.Ref{Key: key(s, "copy")})
	require.ErrorIs(t, err, moraine.NotFound)
}

func testCopy(t *testing.T, s Store) {
	data := random(11<<20 + 7)
	info := Put(t, s, key(s, "from"), data, 5<<20, map[string]string{"file-owner": "7"})
	copied, err := s.Copy(t.Context(), info.Ref, info.Size, key(s, ".moraine/kept/1"))
	require.NoError(t, err)
	require.NotEmpty(t, copied.ETag)
	requireBytes(t, s, copied.Ref, data)
	head, err := s.Head(t.Context(), copied.Ref)
	require.NoError(t, err)
	require.Equal(t, info.Size, head.Size)
	require.Equal(t, "7", head.Meta["file-owner"])
	requireBytes(t, s, info.Ref, data)
}

func testDelete(t *testing.T, s Store) {
	info := Put(t, s, key(s, "k"), random(10), 5<<20, nil)
	if traits, err := s.Traits(t.Context()); err == nil && traits.IfMatchDelete {
		err := s.Delete(t.Context(), object.Ref{Key: info.Key, ETag: "0123456789abcdef0123456789abcdef-1"})
		require.ErrorIs(t, err, moraine.Conflict)
		require.True(t, object.Refused(err))
		requireBytes(t, s, info.Ref, random(10))
	}
	for range 2 {
		require.NoError(t, s.Delete(t.Context(), info.Ref))
		_, err := s.Head(t.Context(), info.Ref)
		require.ErrorIs(t, err, moraine.NotFound)
		require.ErrorIs(t, s.Get(t.Context(), info.Ref, 0, make([]byte, 1)), moraine.NotFound)
	}
}

func testKeys(t *testing.T, s Store) {
	for _, name := range []string{"a b+c&d=e?f#g", "grün/日本語/😀", "100%25", "%FF%FE", "~!@$^*()_-'\";:,<>[]{}|`"} {
		data := []byte(name)
		info := Put(t, s, key(s, name), data, 5<<20, nil)
		requireBytes(t, s, info.Ref, data)
		id, err := s.NewUpload(t.Context(), key(s, name), nil)
		require.NoError(t, err)
		ids, err := s.Uploads(t.Context(), key(s, name))
		require.NoError(t, err)
		require.Equal(t, []string{id}, ids, name)
	}
}

func testFence(t *testing.T, s Store) {
	info := Put(t, s, key(s, "k"), random(10), 5<<20, nil)
	fenced := object.WithFence(t.Context(), func() error {
		return &moraine.Error{Op: "lease", Kind: moraine.Fenced, Err: errors.New("over")}
	})
	for name, err := range map[string]error{
		"delete": s.Delete(fenced, info.Ref),
		"head":   second(s.Head(fenced, info.Ref)),
		"copy":   second(s.Copy(fenced, info.Ref, 10, key(s, "copy"))),
		"upload": second(s.NewUpload(fenced, key(s, "k"), nil)),
		"abort":  s.Abort(fenced, key(s, "k"), "x"),
	} {
		require.ErrorIs(t, err, moraine.Fenced, name)
		require.True(t, object.Refused(err), name)
	}
	requireBytes(t, s, info.Ref, random(10))
	held := object.WithFence(t.Context(), func() error { return nil })
	require.NoError(t, s.Delete(held, info.Ref))
}

func second[T any](_ T, err error) error { return err }

// testRepeats: a part may be put again, and the last one counts.
func testRepeats(t *testing.T, s Store) {
	ctx := t.Context()
	id, err := s.NewUpload(ctx, key(s, "k"), nil)
	require.NoError(t, err)
	var part object.Part
	for _, text := range []string{"first", "again"} {
		part, err = s.PutPart(ctx, key(s, "k"), id, 1, []byte(text), crc.Sum([]byte(text)))
		require.NoError(t, err)
	}
	info, err := s.Complete(ctx, key(s, "k"), id, []object.Part{part}, crc.Sum([]byte("again")), true, object.Condition{})
	require.NoError(t, err)
	requireBytes(t, s, info.Ref, []byte("again"))
	_, err = s.Complete(context.WithoutCancel(ctx), key(s, "k"), id, []object.Part{part}, crc.Sum([]byte("again")), true, object.Condition{})
	if err != nil { // some stores repeat the first answer
		require.ErrorIs(t, err, moraine.NotFound)
	}
}
