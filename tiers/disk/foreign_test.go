package disk_test

import (
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/disk"
	"github.com/morainefs/moraine/tiers/tiertest"
	"github.com/stretchr/testify/require"
)

func TestFormatRefusesADirectoryOfSomethingElse(t *testing.T) {
	mem := vfs.NewMem(1)
	require.NoError(t, mem.MkdirAll("/d"))
	f, err := mem.Open("/d/thesis.txt", vfs.Create)
	require.NoError(t, err)
	require.NoError(t, f.Close())

	_, err = disk.Format(mem, "/d", tiertest.Cluster, random(1))
	require.ErrorIs(t, err, moraine.NotEmpty)
	require.ErrorContains(t, err, "thesis.txt")
	names, err := mem.List("/d")
	require.NoError(t, err)
	require.Equal(t, []string{"thesis.txt"}, names, "it is left as it was")

	require.NoError(t, mem.Remove("/d/thesis.txt"))
	require.NoError(t, mem.MkdirAll("/d/lost+found"))
	_, err = disk.Format(mem, "/d", tiertest.Cluster, random(1))
	require.NoError(t, err, "the root of a new file system is empty")
}
