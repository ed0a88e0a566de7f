package fuse_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/fuse"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// A directory larger than any answer is read whole, in any pieces, and while its
// entries are removed.
func TestLargeDirectory(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m := mount(t, c, "c1")
	const n = 1200 // more than the largest answer has (maxDirPage)
	dir := m.at("dir")
	require.NoError(t, os.Mkdir(dir, 0o755))
	parent := inodeOf(t, dir)
	var want []string
	var makers errgroup.Group
	makers.SetLimit(64)
	for i := range n {
		name := fmt.Sprintf("a name that is not so short %06d", i)
		want = append(want, name)
		makers.Go(func() error {
			_, err := m.client.Inodes().Create(t.Context(), parent, name, createOptions)
			return err
		})
	}
	require.NoError(t, makers.Wait())
	for _, piece := range []int{1, 7, 1000, -1} {
		f, err := os.Open(dir)
		require.NoError(t, err)
		var got []string
		for {
			names, err := f.Readdirnames(piece)
			got = append(got, names...)
			if err == io.EOF || piece < 0 {
				break
			}
			require.NoError(t, err)
		}
		require.NoError(t, f.Close())
		require.Equal(t, want, got, "in pieces of %d", piece)
	}
	f, err := os.Open(dir)
	require.NoError(t, err)
	defer f.Close()
	var seen []string
	for {
		names, err := f.Readdirnames(100)
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		var removers errgroup.Group
		for _, name := range names {
			removers.Go(func() error { return os.Remove(filepath.Join(dir, name)) })
		}
		require.NoError(t, removers.Wait())
		seen = append(seen, names...)
	}
	slices.Sort(seen)
	require.Equal(t, want, seen)
	require.NoError(t, os.Remove(dir))
}

// inodeOf is the number of a file or directory.
func inodeOf(t *testing.T, path string) inode {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Lstat(path, &st))
	return inode(st.Ino)
}

// Each kind of rename in Linux works; links count; names have a length limit.
func TestNames(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m := mount(t, c, "c1")
	write := func(name string) { require.NoError(t, os.WriteFile(m.at(name), []byte(name), 0o644)) }
	read := func(name string) string {
		b, err := os.ReadFile(m.at(name))
		require.NoError(t, err)
		return string(b)
	}
	rename := func(from, to string, flags uint) error {
		return unix.Renameat2(unix.AT_FDCWD, m.at(from), unix.AT_FDCWD, m.at(to), flags)
	}
	write("a")
	write("b")
	require.ErrorIs(t, rename("a", "b", unix.RENAME_NOREPLACE), syscall.EEXIST)
	require.NoError(t, rename("a", "b", unix.RENAME_EXCHANGE))
	require.Equal(t, []string{"b", "a"}, []string{read("a"), read("b")})
	require.ErrorIs(t, rename("a", "c", unix.RENAME_EXCHANGE), syscall.ENOENT)
	require.ErrorIs(t, rename("a", "c", unix.RENAME_WHITEOUT|unix.RENAME_EXCHANGE), syscall.EINVAL)
	require.NoError(t, rename("a", "c", unix.RENAME_NOREPLACE))
	require.NoError(t, os.Rename(m.at("c"), m.at("b")))
	require.Equal(t, "b", read("b"))
	require.NoError(t, os.MkdirAll(m.at("d/e"), 0o755))
	require.ErrorIs(t, os.Rename(m.at("d"), m.at("d/e/f")), syscall.EINVAL)
	require.ErrorIs(t, os.Remove(m.at("d")), syscall.ENOTEMPTY)
	require.ErrorIs(t, os.Rename(m.at("b"), m.at("d")), syscall.EEXIST)
	require.ErrorIs(t, os.Rename(m.at("d"), m.at("b")), syscall.ENOTDIR)
	require.NoError(t, os.Link(m.at("b"), m.at("d/second")))
	require.ErrorIs(t, os.Link(m.at("b"), m.at("d/second")), syscall.EEXIST)
	require.NoError(t, os.Remove(m.at("b")))
	require.Equal(t, "b", read("d/second"))
	long := string(make([]byte, 256))
	require.Error(t, os.Mkdir(m.at(long), 0o755))
	require.ErrorIs(t, os.Mkdir(m.at(strconv.Itoa(1)+fmt.Sprintf("%0255d", 1)), 0o755), syscall.ENAMETOOLONG)
}

// A directory of the cluster can be mounted alone, and read-only.
func TestMountOfADirectory(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m := mount(t, c, "c1")
	require.NoError(t, os.MkdirAll(m.at("a/b"), 0o755))
	require.NoError(t, os.WriteFile(m.at("a/b/file"), []byte("content"), 0o644))
	ro := mount(t, c, "c2", mountOptions{mount: fuse.Config{Root: inodeOf(t, m.at("a")), ReadOnly: true}})
	got, err := os.ReadFile(ro.at("b/file"))
	require.NoError(t, err)
	require.Equal(t, "content", string(got))
	require.ErrorIs(t, os.WriteFile(ro.at("b/new"), nil, 0o644), syscall.EROFS)
	require.ErrorIs(t, os.Remove(ro.at("b/file")), syscall.EROFS)
	entries, err := os.ReadDir(ro.dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.Equal(t, "b", entries[0].Name())
}

// The kernel gets the attributes of the first 4096 entries of a listing and no more: it makes an
// inode of each, and a directory of millions would fill its memory. Files beyond have attributes as
// soon as a program looks at them.
func TestAListingOfALargeDirectoryFillsNoMemory(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	maker, m := mount(t, c, "c1"), mount(t, c, "c2", mountOptions{client: client.Config{CacheEntries: 20_000}})
	const n, most = 4600, 4096
	require.NoError(t, os.Mkdir(maker.at("dir"), 0o755))
	parent := inodeOf(t, maker.at("dir"))
	var makers errgroup.Group
	makers.SetLimit(64)
	for i := range n {
		makers.Go(func() error {
			_, err := maker.client.Inodes().Create(t.Context(), parent, fmt.Sprintf("name %06d", i), createOptions)
			return err
		})
	}
	require.NoError(t, makers.Wait())
	before := m.client.Stats().Loans
	f, err := os.Open(m.at("dir"))
	require.NoError(t, err)
	defer f.Close()
	names, err := f.Readdirnames(-1)
	require.NoError(t, err)
	require.Len(t, names, n)
	// Each entry with attributes is lent twice: the name and the attributes. The rest is the directory's.
	lent := m.client.Stats().Loans - before
	require.Greater(t, lent, uint64(most))
	require.LessOrEqual(t, lent, uint64(2*most+20))
	for _, name := range []string{names[0], names[most-1], names[most], names[n-1]} {
		info, err := os.Lstat(filepath.Join(m.at("dir"), name))
		require.NoError(t, err)
		require.Equal(t, name, info.Name())
		require.True(t, info.Mode().IsRegular())
	}
}
