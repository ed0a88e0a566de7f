package fuse_test

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// anyNames are names that are no text.
var anyNames = []string{"\xff\xfe", "caf\xe9", "\xed\xb3\xbf lone surrogate", "new\nline \x1b[2J", "half \xf0\x9f\x98",
	strings.Repeat("\x80", 255), "\uFFFD", `\xff`}

// namesIn returns the names in a directory, sorted.
func namesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return names
}

// Names, targets of links and names of attributes are any bytes but NUL, and of names no slash. They
// are the same through two mounts, the Go client, and after a restart of the metadata service.
func TestNamesOfAnyBytes(t *testing.T) {
	c := startCluster(t, incluster.Options{})
	a, b := mount(t, c, "a"), mount(t, c, "b")
	want := slices.Sorted(slices.Values(anyNames))
	require.NoError(t, os.Mkdir(a.at("files"), 0o755))
	require.NoError(t, os.Mkdir(a.at("links"), 0o755))
	for _, name := range anyNames {
		require.NoError(t, os.WriteFile(filepath.Join(a.at("files"), name), []byte(name), 0o644), "%q", name)
		require.NoError(t, os.Symlink(name+"/"+name, filepath.Join(b.at("links"), name)), "%q", name)
		attr := "user." + name[:min(len(name), 200)]
		require.NoError(t, unix.Setxattr(filepath.Join(a.at("files"), name), attr, []byte("\xff value"), 0), "%q", name)
	}
	check := func() {
		for _, m := range []*mounted{a, b} {
			require.Equal(t, want, namesIn(t, m.at("files")))
			require.Equal(t, want, namesIn(t, m.at("links")))
			for _, name := range anyNames {
				file := filepath.Join(m.at("files"), name)
				data, err := os.ReadFile(file)
				require.NoError(t, err)
				require.Equal(t, name, string(data))
				target, err := os.Readlink(filepath.Join(m.at("links"), name))
				require.NoError(t, err)
				require.Equal(t, name+"/"+name, target)
				attr := "user." + name[:min(len(name), 200)]
				list := make([]byte, 1000)
				n, err := unix.Listxattr(file, list)
				require.NoError(t, err)
				require.Equal(t, attr+"\x00", string(list[:n]))
				n, err = unix.Getxattr(file, attr, list)
				require.NoError(t, err)
				require.Equal(t, "\xff value", string(list[:n]))
			}
		}
	}
	check()
	nodes := c.Nodes()
	require.NoError(t, c.Restart(nodes...))
	require.NoError(t, c.WaitReady(t.Context()))
	check()

	for _, name := range anyNames { // through the client
		attr, err := a.client.Stat(t.Context(), "/files/"+name)
		require.NoError(t, err)
		require.EqualValues(t, len(name), attr.Size())
	}
	var listed []string
	for e, err := range a.client.ReadDir(t.Context(), "/files") {
		require.NoError(t, err)
		listed = append(listed, e.Name)
	}
	require.Equal(t, want, listed, "in the order of their bytes")
	f, err := a.client.Create(t.Context(), "/files/by \xfe\xff the client", client.CreateOptions{})
	require.NoError(t, err)
	_, err = f.Commit(t.Context())
	require.NoError(t, err)
	require.Contains(t, namesIn(t, b.at("files")), "by \xfe\xff the client")
}

// What changes a name takes any bytes too, and no name replaces another that looks like it.
func TestChangesOfNamesOfAnyBytes(t *testing.T) {
	c := startCluster(t, incluster.Options{})
	a, b := mount(t, c, "a"), mount(t, c, "b")
	require.NoError(t, os.Mkdir(a.at("\xffdir"), 0o755))
	for _, name := range []string{"\xff", "\xfe", "\uFFFD"} {
		require.NoError(t, os.WriteFile(a.at("\xffdir/"+name), []byte(name), 0o644))
	}
	require.NoError(t, os.Rename(b.at("\xffdir"), b.at("\xfedir")))
	require.NoError(t, os.Link(a.at("\xfedir/\xff"), a.at("second \xc0")))
	require.NoError(t, os.Rename(a.at("\xfedir/\xfe"), a.at("\xfedir/\xff")))
	require.Equal(t, []string{"\uFFFD", "\xff"}, namesIn(t, b.at("\xfedir")))
	data, err := os.ReadFile(b.at("\xfedir/\xff"))
	require.NoError(t, err)
	require.Equal(t, "\xfe", string(data))
	data, err = os.ReadFile(b.at("second \xc0"))
	require.NoError(t, err)
	require.Equal(t, "\xff", string(data))
	_, err = os.Stat(b.at("\xffdir"))
	require.ErrorIs(t, err, syscall.ENOENT)
	require.ErrorIs(t, os.WriteFile(a.at(strings.Repeat("\xff", 256)), nil, 0o644), syscall.ENAMETOOLONG)
	require.NoError(t, unix.Mkfifo(a.at("fifo \xf5"), 0o600))
	require.NoError(t, os.Remove(b.at("fifo \xf5")))
	require.NoError(t, a.client.RemoveAll(t.Context(), "/"+path.Join("\xfedir")))
	require.Equal(t, []string{"second \xc0"}, namesIn(t, b.dir))
}
