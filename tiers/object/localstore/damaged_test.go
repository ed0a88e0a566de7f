package localstore_test

import (
	"bytes"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/object/localstore"
)

// TestADamagedFileIsMovedAside: what takes the place of an object whose record cannot be read, or
// deletes it, keeps its bytes for a person, also over a loss of power.
func TestADamagedFileIsMovedAside(t *testing.T) {
	put := func(s *localstore.Store, content string) error {
		_, err := s.Put("key", localstore.Record{}, strings.NewReader(content), nil, localstore.Condition{})
		return err
	}
	for name, change := range map[string]func(s *localstore.Store) error{
		"replaced": func(s *localstore.Store) error { return put(s, "new bytes") },
		"deleted":  func(s *localstore.Store) error { return s.Delete("key", "") },
	} {
		t.Run(name, func(t *testing.T) {
			disk := vfs.NewMem(1)
			s := openStore(t, disk)
			require.Empty(t, s.Damaged())
			require.NoError(t, put(s, "old bytes"))
			require.NoError(t, s.Close())
			names, err := disk.List("store/objects")
			require.NoError(t, err)
			f, err := disk.Open("store/objects/"+names[0], vfs.Write)
			require.NoError(t, err)
			size, err := f.Size()
			require.NoError(t, err)
			_, err = f.WriteAt([]byte{0xff}, size-1)
			require.NoError(t, err)
			require.NoError(t, f.Sync())
			require.NoError(t, f.Close())

			s = openStore(t, disk)
			require.Len(t, s.Damaged(), 1)
			require.ErrorIs(t, s.Damaged()[0].Damage, moraine.Corrupt)
			require.NoError(t, change(s))
			require.Empty(t, s.Damaged())
			disk = disk.Crash(rand.New(rand.NewPCG(1, 1)))
			s = openStore(t, disk)
			require.Empty(t, s.Damaged())
			_, err = s.Head("key")
			if name == "deleted" {
				require.ErrorIs(t, err, moraine.NotFound)
			} else {
				require.NoError(t, err)
			}
			aside, err := disk.List("store/damaged")
			require.NoError(t, err)
			require.Len(t, aside, 1)
			f, err = disk.Open("store/damaged/"+aside[0], vfs.Read)
			require.NoError(t, err)
			got := make([]byte, size)
			_, err = f.ReadAt(got, 0)
			require.True(t, err == nil || err == io.EOF, err)
			require.True(t, bytes.HasPrefix(got, []byte("old bytes")))
			require.NoError(t, f.Close())
		})
	}
}
