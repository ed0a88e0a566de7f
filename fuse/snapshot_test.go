package fuse_test

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
)

// A snapshot is read through a mount by its path, keeps the bytes that were there, and refuses every
// change. Listings of the directory omit it, and the directory cannot be removed before it.
func TestSnapshotThroughAMount(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m := mount(t, c, "c1")
	require.NoError(t, os.MkdirAll(m.at("data/sub"), 0o755))
	require.NoError(t, os.WriteFile(m.at("data/sub/file"), []byte("before"), 0o644))
	require.NoError(t, os.Symlink("sub/file", m.at("data/link")))
	job, err := m.client.Jobs().Snapshot(t.Context(), "/data", "one")
	require.NoError(t, err)
	job, err = m.client.Jobs().Wait(t.Context(), job.ID, nil)
	require.NoError(t, err)
	require.Equal(t, client.JobDone, job.State, job.Error)

	require.NoError(t, os.WriteFile(m.at("data/sub/file"), []byte("after it"), 0o644))
	require.NoError(t, os.WriteFile(m.at("data/new"), nil, 0o644))
	for _, name := range []string{"sub/file", "link"} {
		b, err := os.ReadFile(m.at("data/.snapshots/one/" + name))
		require.NoError(t, err)
		require.Equal(t, "before", string(b), name)
	}
	require.Equal(t, []string{"link", "new", "sub"}, namesIn(t, m.at("data")))
	for _, name := range []string{".snapshots", ".trash"} { // a file of such a name is like any other
		require.NoError(t, os.WriteFile(m.at("data/sub/"+name), nil, 0o644))
	}
	require.Equal(t, []string{".snapshots", ".trash", "file"}, namesIn(t, m.at("data/sub")))
	require.Equal(t, []string{"link", "sub"}, namesIn(t, m.at("data/.snapshots/one")))

	in := m.at("data/.snapshots/one")
	_, err = os.OpenFile(in+"/sub/file", os.O_WRONLY, 0)
	require.ErrorIs(t, err, syscall.EPERM)
	require.ErrorIs(t, os.WriteFile(in+"/new", nil, 0o644), syscall.EPERM)
	require.ErrorIs(t, os.Remove(in+"/link"), syscall.EPERM)
	require.ErrorIs(t, os.Chmod(in+"/sub", 0o700), syscall.EPERM)
	require.ErrorIs(t, os.Rename(in, m.at("data/two")), syscall.EPERM)

	require.NoError(t, os.RemoveAll(m.at("data/sub")))
	require.NoError(t, os.Remove(m.at("data/link")))
	require.NoError(t, os.Remove(m.at("data/new")))
	require.ErrorIs(t, os.Remove(m.at("data")), syscall.ENOTEMPTY)
	require.NoError(t, m.client.RemoveAll(t.Context(), "/data/.snapshots"))
	require.NoError(t, os.Remove(m.at("data")))
}
