package fuse_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
)

// rm -r through a mount moves files to the trash of the policy, where listings do not show them. An
// open file can still be read, and mv takes a file back.
func TestTrashThroughAMount(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m := mount(t, c, "c1")
	require.NoError(t, os.MkdirAll(m.at("home/dir/sub"), 0o755))
	require.NoError(t, m.client.Policies().Set(t.Context(), inodeOf(t, m.at("home")), client.Policy{Trash: time.Hour}))
	require.NoError(t, os.WriteFile(m.at("home/dir/sub/file"), []byte("precious"), 0o644))
	require.NoError(t, os.WriteFile(m.at("home/dir/other"), nil, 0o644))
	f, err := os.Open(m.at("home/dir/sub/file"))
	require.NoError(t, err)
	defer f.Close()

	require.NoError(t, os.RemoveAll(m.at("home/dir")))
	require.Empty(t, namesIn(t, m.at("home")))
	b := make([]byte, 8)
	_, err = f.ReadAt(b, 0)
	require.NoError(t, err)
	require.Equal(t, "precious", string(b))
	require.NoError(t, f.Close())

	hours := namesIn(t, m.at("home/.trash"))
	require.Len(t, hours, 1)
	in := filepath.Join(m.at("home/.trash"), hours[0], "dir")
	require.Equal(t, []string{"other", "sub"}, namesIn(t, in))
	require.NoError(t, os.Rename(in+"/sub/file", m.at("home/file")))
	b, err = os.ReadFile(m.at("home/file"))
	require.NoError(t, err)
	require.Equal(t, "precious", string(b))
	require.NoError(t, os.RemoveAll(m.at("home/.trash")))
	require.NoDirExists(t, m.at("home/.trash"))
}
