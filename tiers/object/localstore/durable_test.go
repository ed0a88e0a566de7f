package localstore_test

import (
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/object/localstore"
)

// gated is a disk. Once gate is set, syncs of directories wait. With full set,
// writes fail.
type gated struct {
	*vfs.Mem
	gate chan struct{}
	full bool
}

func (g *gated) SyncDir(name string) error {
	if g.gate != nil {
		<-g.gate
	}
	return g.Mem.SyncDir(name)
}

func (g *gated) Open(name string, flag vfs.OpenFlag) (vfs.File, error) {
	if g.full && flag&vfs.Create != 0 {
		return nil, syscall.ENOSPC
	}
	return g.Mem.Open(name, flag)
}

// TestOnlyDurableChangesAreReported: between the rename or removal of an object and
// its sync, a power loss may undo it. The store does not report the change before
// that. Otherwise a caller might conclude that a file may be evicted, or that a key
// is free.
func TestOnlyDurableChangesAreReported(t *testing.T) {
	for name, change := range map[string]func(s *localstore.Store) error{
		"put": func(s *localstore.Store) error {
			_, err := s.Put("k", localstore.Record{}, strings.NewReader("new"), nil, localstore.Condition{})
			return err
		},
		"delete": func(s *localstore.Store) error { return s.Delete("k", "") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := &gated{Mem: vfs.NewMem(1)}
				s, err := localstore.Open(disk, "/b", localstore.Options{})
				require.NoError(t, err)
				_, err = s.Put("k", localstore.Record{}, strings.NewReader("old"), nil, localstore.Condition{})
				require.NoError(t, err)
				gate := make(chan struct{})
				disk.gate = gate
				changed, said := make(chan error, 1), make(chan string, 4)
				go func() { changed <- change(s) }()
				synctest.Wait()
				go func() { _, err := s.Head("k"); said <- errorOf("head", err) }()
				go func() {
					_, f, err := s.Get("k")
					if f != nil {
						_ = f.Close()
					}
					said <- errorOf("get", err)
				}()
				go func() {
					_, err := s.Put("k", localstore.Record{}, strings.NewReader("x"), nil, localstore.Condition{Free: true})
					said <- errorOf("condition", err)
				}()
				go func() { s.List(""); said <- "list" }()
				// The store serves other keys meanwhile.
				_, err = s.Head("another")
				require.ErrorIs(t, err, moraine.NotFound)
				synctest.Wait()
				early := len(said)
				close(gate)
				require.Zero(t, early)
				require.NoError(t, <-changed)
				for range cap(said) {
					<-said
				}
			})
		})
	}
}

func errorOf(what string, err error) string {
	if err != nil {
		return what + ": " + err.Error()
	}
	return what
}

// TestACompletionVerifiesItsParts: a part that was damaged on the disk since its
// upload does not get into an object, with a checksum made of the damaged bytes.
func TestACompletionVerifiesItsParts(t *testing.T) {
	disk := vfs.NewMem(1)
	s, err := localstore.Open(disk, "/b", localstore.Options{})
	require.NoError(t, err)
	id, err := s.NewUpload("k", localstore.Record{})
	require.NoError(t, err)
	first, err := s.PutPart("k", id, 1, strings.NewReader("the first part"), nil)
	require.NoError(t, err)
	second, err := s.PutPart("k", id, 2, strings.NewReader("the second part"), nil)
	require.NoError(t, err)
	f, err := disk.Open("/b/uploads/"+id+"/00002", vfs.Write)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("T"), 0)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	parts := []localstore.Part{{Number: 1, Record: first}, {Number: 2, Record: second}}
	_, err = s.Complete("k", id, parts, nil, localstore.Condition{})
	require.ErrorIs(t, err, moraine.Corrupt)
	_, err = s.Head("k")
	require.ErrorIs(t, err, moraine.NotFound)
	// After another put the part is right.
	_, err = s.PutPart("k", id, 2, strings.NewReader("the second part"), nil)
	require.NoError(t, err)
	_, err = s.Complete("k", id, parts, nil, localstore.Condition{})
	require.NoError(t, err)
}

// TestAFailedUploadLeavesNothing: otherwise each upload that a full disk refuses
// would leave a directory.
func TestAFailedUploadLeavesNothing(t *testing.T) {
	disk := &gated{Mem: vfs.NewMem(1)}
	s, err := localstore.Open(disk, "/b", localstore.Options{})
	require.NoError(t, err)
	disk.full = true
	_, err = s.NewUpload("k", localstore.Record{})
	require.ErrorIs(t, err, moraine.NoSpace)
	left, err := disk.List("/b/uploads")
	require.NoError(t, err)
	require.Empty(t, left)
}
