package localstore_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/object/localstore"
)

// slow is a disk that calls a function before one sync of a file.
type slow struct {
	*vfs.Mem
	before func()
}

func (s *slow) Open(name string, flag vfs.OpenFlag) (vfs.File, error) {
	f, err := s.Mem.Open(name, flag)
	return &slowFile{f, s}, err
}

type slowFile struct {
	vfs.File
	disk *slow
}

func (f *slowFile) Sync() error {
	if fn := f.disk.before; fn != nil {
		f.disk.before = nil
		fn()
	}
	return f.File.Sync()
}

func uploaded(t *testing.T, s *localstore.Store, bytes string) (id string, parts []localstore.Part) {
	t.Helper()
	id, err := s.NewUpload("k", localstore.Record{})
	require.NoError(t, err)
	r, err := s.PutPart("k", id, 1, strings.NewReader(bytes), nil)
	require.NoError(t, err)
	return id, []localstore.Part{{Number: 1, Record: r}}
}

// If an upload is aborted while its completion runs, the completion makes no
// object: the caller of Abort relies on what is at the key then. A second
// completion does not restore an object that was deleted since.
func TestACompletionOfAnEndedUploadMakesNothing(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, s *localstore.Store, id string, parts []localstore.Part){
		"aborted": func(t *testing.T, s *localstore.Store, id string, _ []localstore.Part) {
			require.NoError(t, s.Abort("k", id))
		},
		"completed, and the object deleted": func(t *testing.T, s *localstore.Store, id string, parts []localstore.Part) {
			_, err := s.Complete("k", id, parts, nil, localstore.Condition{})
			require.NoError(t, err)
			require.NoError(t, s.Delete("k", ""))
		},
	} {
		t.Run(name, func(t *testing.T) {
			files := &slow{Mem: vfs.NewMem(1)}
			s := openStore(t, files)
			id, parts := uploaded(t, s, "bytes")
			files.before = func() { end(t, s, id, parts) }
			_, err := s.Complete("k", id, parts, nil, localstore.Condition{})
			require.ErrorIs(t, err, moraine.NotFound)
			_, err = s.Head("k")
			require.ErrorIs(t, err, moraine.NotFound)
			names, err := files.List("store/objects")
			require.NoError(t, err)
			require.Empty(t, names)
		})
	}
}

// The store does not report an object whose name it could not make durable, nor the
// absence of one whose removal it could not. Callers rely on these answers. Objects
// that were durable before stay readable.
func TestAnUnsyncedObjectIsNotConfirmed(t *testing.T) {
	files := &failing{Mem: vfs.NewMem(1)}
	s := openStore(t, files)
	_, err := s.Put("before", localstore.Record{}, strings.NewReader("durable"), nil, localstore.Condition{})
	require.NoError(t, err)
	id, parts := uploaded(t, s, "bytes")
	files.fail = true
	_, err = s.Complete("k", id, parts, nil, localstore.Condition{})
	require.ErrorIs(t, err, moraine.IOError)
	files.fail = false // the kernel reports success for the next sync, though the name may be lost
	_, err = s.Head("k")
	require.ErrorIs(t, err, moraine.IOError)
	_, f, err := s.Get("k")
	if err == nil {
		require.NoError(t, f.Close())
	}
	require.ErrorIs(t, err, moraine.IOError)
	require.ErrorIs(t, s.Abort("k", id), moraine.IOError)
	require.ErrorIs(t, s.Delete("before", ""), moraine.IOError)
	r, f, err := s.Get("before")
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.EqualValues(t, 7, r.Size)
	_, err = s.Head("before")
	require.NoError(t, err)
}

// The same for a removal: the name may come back.
func TestAnUnsyncedRemovalIsNotConfirmed(t *testing.T) {
	files := &failing{Mem: vfs.NewMem(1)}
	s := openStore(t, files)
	_, err := s.Put("k", localstore.Record{}, strings.NewReader("bytes"), nil, localstore.Condition{})
	require.NoError(t, err)
	files.fail = true
	require.ErrorIs(t, s.Delete("k", ""), moraine.IOError)
	files.fail = false
	_, err = s.Head("k")
	require.ErrorIs(t, err, moraine.IOError)
}

// A process may leave a name that it did not sync. Its successor makes the name
// durable before it reports the object as present or absent.
func TestWhatASuccessorFindsIsDurable(t *testing.T) {
	disk := vfs.NewMem(1)
	files := &failing{Mem: disk}
	s := openStore(t, files)
	_, err := s.Put("removed", localstore.Record{}, strings.NewReader("bytes"), nil, localstore.Condition{})
	require.NoError(t, err)
	files.fail = true
	_, err = s.Put("made", localstore.Record{}, strings.NewReader("bytes"), nil, localstore.Condition{})
	require.ErrorIs(t, err, moraine.IOError)
	require.NoError(t, s.Close())
	files.fail = false
	s = openStore(t, files)
	files.fail = true
	require.ErrorIs(t, s.Delete("removed", ""), moraine.IOError)
	require.NoError(t, s.Close())
	files.fail = false
	s = openStore(t, files)
	_, err = s.Head("made")
	require.NoError(t, err)
	_, err = s.Head("removed")
	require.ErrorIs(t, err, moraine.NotFound)
	for seed := range uint64(20) {
		s = openStore(t, disk.Crash(rand.New(rand.NewPCG(seed, 1))))
		_, err = s.Head("made")
		require.NoError(t, err, "the successor said that it is there")
		_, err = s.Head("removed")
		require.ErrorIs(t, err, moraine.NotFound, "the successor said that it is gone")
	}
}
