package localstore_test

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/object/localstore"
)

var update = flag.Bool("localstore.update", false, "rewrite the golden file")

func openStore(t *testing.T, files vfs.FS) *localstore.Store {
	s, err := localstore.Open(files, "store", localstore.Options{Now: clock})
	require.NoError(t, err)
	return s
}

// goldenFile is the file of an object as this build writes it.
func goldenFile(t *testing.T) []byte {
	files := vfs.NewMem(1)
	s := openStore(t, files)
	_, err := s.Put("runs/a/part-0", localstore.Record{Headers: map[string]string{"type": "text/plain"}, Meta: map[string]string{"file-owner": "7"}},
		strings.NewReader("the bytes of an object\n"), nil, localstore.Condition{})
	require.NoError(t, err)
	r, f, err := s.Get("runs/a/part-0")
	require.NoError(t, err)
	defer f.Close()
	require.EqualValues(t, 23, r.Size)
	size, err := f.Size()
	require.NoError(t, err)
	data := make([]byte, size)
	_, err = f.ReadAt(data, 0)
	require.NoError(t, err)
	return data
}

// docs/formats/local-object.md describes the format of the files.
func TestGoldenFile(t *testing.T) {
	const file = "testdata/object"
	data := goldenFile(t)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(file, data, 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), string(data))
	r, err := localstore.DecodeTail(want, int64(len(want)))
	require.NoError(t, err)
	require.Equal(t, "7", r.Meta["file-owner"])
}

// FuzzDecodeTail: for any bytes, the decoder fails or returns a record that fits
// the file.
func FuzzDecodeTail(f *testing.F) {
	seed, err := os.ReadFile("testdata/object")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add(seed[30:])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := localstore.DecodeTail(b, int64(len(b)))
		if err != nil && !errors.Is(err, moraine.Corrupt) || err == nil && (r.Size < 0 || r.Size > int64(len(b))) {
			t.Fatalf("%v %v", r, err)
		}
	})
}

// The store evaluates a condition in one step with the change.
func TestConditions(t *testing.T) {
	s := openStore(t, vfs.NewMem(1))
	put := func(data string, cond localstore.Condition) (localstore.Record, error) {
		return s.Put("k", localstore.Record{}, strings.NewReader(data), nil, cond)
	}
	_, err := put("one", localstore.Condition{ETag: "x"})
	require.ErrorIs(t, err, moraine.NotFound)
	first, err := put("one", localstore.Condition{Free: true})
	require.NoError(t, err)
	_, err = put("two", localstore.Condition{Free: true})
	require.ErrorIs(t, err, moraine.Conflict)
	_, err = put("two", localstore.Condition{ETag: "x"})
	require.ErrorIs(t, err, moraine.Conflict)
	_, err = put("two", localstore.Condition{ETag: first.ETag})
	require.NoError(t, err)
}

// A server that reuses the memory of a request may overwrite its strings after the
// answer.
func TestStringsOfARequestAreCopied(t *testing.T) {
	s := openStore(t, vfs.NewMem(1))
	reused := []byte("key")
	name := unsafe.String(&reused[0], len(reused))
	_, err := s.Put(name, localstore.Record{Meta: map[string]string{"owner": name}}, strings.NewReader("bytes"), nil, localstore.Condition{})
	require.NoError(t, err)
	copy(reused, "yek")
	r, err := s.Head("key")
	require.NoError(t, err)
	require.Equal(t, "key", r.Meta["owner"])
	require.Len(t, s.List(""), 1)
}

// Bytes that do not match the announced CRC leave nothing behind.
func TestWrongCRCLeavesNothing(t *testing.T) {
	files := vfs.NewMem(1)
	s := openStore(t, files)
	wrong := crc.Sum([]byte("other bytes"))
	_, err := s.Put("k", localstore.Record{}, strings.NewReader("bytes"), &wrong, localstore.Condition{})
	require.ErrorIs(t, err, moraine.Corrupt)
	_, err = s.Head("k")
	require.ErrorIs(t, err, moraine.NotFound)
	names, err := files.List("store/objects")
	require.NoError(t, err)
	require.Empty(t, names)
}

// After a failed sync the store accepts no change until it is reopened.
func TestFailedSyncEndsTheStore(t *testing.T) {
	disk := vfs.NewMem(1)
	files := &failing{Mem: disk}
	s := openStore(t, files)
	put := func() error {
		_, err := s.Put("k", localstore.Record{}, strings.NewReader("bytes"), nil, localstore.Condition{})
		return err
	}
	require.NoError(t, put())
	files.fail = true
	require.ErrorIs(t, put(), moraine.IOError)
	files.fail = false
	require.ErrorIs(t, put(), moraine.IOError)
	require.NoError(t, s.Close())
	s = openStore(t, files)
	require.NoError(t, put())
}

// failing is a disk whose syncs of directories fail at times.
type failing struct {
	*vfs.Mem
	fail bool
}

func (f *failing) SyncDir(dir string) error {
	if f.fail {
		return errors.New("the disk says no")
	}
	return f.Mem.SyncDir(dir)
}

// Inspect reports a damaged file, and names it.
func TestInspectFindsDamage(t *testing.T) {
	files := vfs.NewMem(1)
	s := openStore(t, files)
	_, err := s.Put("k", localstore.Record{}, bytes.NewReader(make([]byte, 5000)), nil, localstore.Condition{})
	require.NoError(t, err)
	damaged := func(data bool) (n int) {
		require.NoError(t, localstore.Inspect(files, "store", data, func(i localstore.FileInfo) {
			if i.Damage != nil {
				n++
			}
		}))
		return n
	}
	require.Zero(t, damaged(true))
	names, err := files.List("store/objects")
	require.NoError(t, err)
	f, err := files.Open("store/objects/"+names[0], vfs.Write)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{1}, 2500)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.Zero(t, damaged(false))
	require.Equal(t, 1, damaged(true))
}

// A damaged record affects only its own object: the store opens and serves the
// others.
func TestADamagedRecordCostsItsObjectAlone(t *testing.T) {
	files := vfs.NewMem(1)
	s := openStore(t, files)
	put := func(s *localstore.Store, key string, cond localstore.Condition) error {
		_, err := s.Put(key, localstore.Record{}, strings.NewReader("bytes of "+key), nil, cond)
		return err
	}
	require.NoError(t, put(s, "first", localstore.Condition{}))
	names, err := files.List("store/objects")
	require.NoError(t, err)
	require.NoError(t, put(s, "second", localstore.Condition{}))
	upload, err := s.NewUpload("third", localstore.Record{})
	require.NoError(t, err)
	require.NoError(t, s.Close())
	for _, name := range []string{"objects/" + names[0], "uploads/" + upload + "/upload"} {
		f, err := files.Open("store/"+name, vfs.Write)
		require.NoError(t, err, name)
		size, err := f.Size()
		require.NoError(t, err)
		_, err = f.WriteAt([]byte{0xff}, size-1)
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	s = openStore(t, files)
	_, err = s.Head("second")
	require.NoError(t, err)
	require.Len(t, s.List(""), 1)
	uploads, err := s.Uploads("")
	require.NoError(t, err)
	require.Empty(t, uploads)
	_, err = s.Head("first")
	require.ErrorIs(t, err, moraine.Corrupt)
	_, _, err = s.Get("first")
	require.Error(t, err)
	require.ErrorIs(t, put(s, "first", localstore.Condition{Free: true}), moraine.Conflict)
	require.NoError(t, s.Delete("first", ""))
	_, err = s.Head("first")
	require.ErrorIs(t, err, moraine.NotFound)
	require.NoError(t, put(s, "first", localstore.Condition{Free: true}))
}
