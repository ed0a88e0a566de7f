package fuse_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// describe returns all that a stat shows of a path, except its last access.
func describe(t *testing.T, path string) string {
	t.Helper()
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) {
		return err.Error()
	}
	require.NoError(t, err)
	return fmt.Sprintf("inode %d mode %o links %d owner %d:%d size %d modified %v changed %v",
		st.Ino, st.Mode, st.Nlink, st.Uid, st.Gid, st.Size, st.Mtim, st.Ctim)
}

// lend looks at paths until the kernel of m answers all of them by itself, and returns what it
// answers.
func lend(t *testing.T, m *mounted, paths ...string) []string {
	t.Helper()
	look := func() (seen []string) {
		for _, p := range paths {
			seen = append(seen, describe(t, p))
		}
		return seen
	}
	asked := func() uint64 {
		s := m.client.Stats()
		return s.CacheHits + s.CacheMisses + s.MetaRequests
	}
	var seen []string
	require.Eventually(t, func() bool {
		look()
		before := asked()
		seen = look()
		return asked() == before
	}, 90*time.Second, 10*time.Millisecond, "the kernel answers nothing by itself")
	return seen
}

// nameChange is a change of what a kernel may have been lent.
type nameChange struct {
	name  string
	setup func(dir string) error
	look  []string // what is looked at, below the directory
	do    func(dir string) error
}

func writeZeros(path string, n int) error { return os.WriteFile(path, make([]byte, n), 0o644) }

var nameChanges = []nameChange{
	{"create", nil, []string{"", "x"}, func(d string) error { return writeZeros(d+"/x", 1) }},
	{"mkdir", nil, []string{"", "x"}, func(d string) error { return os.Mkdir(d+"/x", 0o755) }},
	{"symlink", nil, []string{"", "x"}, func(d string) error { return os.Symlink("there", d+"/x") }},
	{"unlink", func(d string) error { return writeZeros(d+"/x", 1) }, []string{"", "x"}, func(d string) error { return os.Remove(d + "/x") }},
	{"rmdir", func(d string) error { return os.Mkdir(d+"/x", 0o755) }, []string{"", "x"}, func(d string) error { return os.Remove(d + "/x") }},
	{"rename over", func(d string) error { return errors.Join(writeZeros(d+"/x", 1), writeZeros(d+"/y", 2)) }, []string{"", "x", "y"},
		func(d string) error { return os.Rename(d+"/y", d+"/x") }},
	{"rename to another directory", func(d string) error { return errors.Join(os.Mkdir(d+"/sub", 0o755), writeZeros(d+"/x", 1)) },
		[]string{"", "x", "sub", "sub/x"}, func(d string) error { return os.Rename(d+"/x", d+"/sub/x") }},
	{"rename of a directory", func(d string) error { return errors.Join(os.MkdirAll(d+"/p/q", 0o755), writeZeros(d+"/p/q/x", 1)) },
		[]string{"p", "p/q/x", "r", "r/q/x"}, func(d string) error { return os.Rename(d+"/p", d+"/r") }},
	{"move of a directory", func(d string) error {
		return errors.Join(os.MkdirAll(d+"/p/q", 0o755), os.Mkdir(d+"/to", 0o755), writeZeros(d+"/p/q/x", 1))
	}, []string{"p", "p/q/..", "p/q/x", "to", "to/q/x"}, func(d string) error { return os.Rename(d+"/p/q", d+"/to/q") }},
	{"rename over a directory", func(d string) error { return errors.Join(os.MkdirAll(d+"/p/q", 0o755), os.Mkdir(d+"/r", 0o755)) },
		[]string{"p", "r", "r/q"}, func(d string) error { return unix.Rename(d+"/p", d+"/r") }},
	{"exchange", func(d string) error {
		return errors.Join(writeZeros(d+"/x", 1), os.Mkdir(d+"/sub", 0o755), writeZeros(d+"/sub/y", 2))
	},
		[]string{"x", "sub/y", "sub"}, func(d string) error {
			return unix.Renameat2(unix.AT_FDCWD, d+"/x", unix.AT_FDCWD, d+"/sub/y", unix.RENAME_EXCHANGE)
		}},
	{"link replaced", func(d string) error { return errors.Join(os.Symlink("a", d+"/x"), os.Symlink("b", d+"/y")) }, []string{"x"},
		func(d string) error { return os.Rename(d+"/y", d+"/x") }},
	{"second name", func(d string) error { return writeZeros(d+"/x", 1) }, []string{"x", "y"}, func(d string) error { return os.Link(d+"/x", d+"/y") }},
	{"one of two names", func(d string) error { return errors.Join(writeZeros(d+"/x", 1), os.Link(d+"/x", d+"/y")) }, []string{"x", "y"},
		func(d string) error { return os.Remove(d + "/y") }},
	{"mode", func(d string) error { return writeZeros(d+"/x", 1) }, []string{"x"}, func(d string) error { return os.Chmod(d+"/x", 0o600) }},
	{"mode of a directory", func(d string) error { return os.Mkdir(d+"/x", 0o755) }, []string{"x"}, func(d string) error { return os.Chmod(d+"/x", 0o700) }},
	{"times", func(d string) error { return writeZeros(d+"/x", 1) }, []string{"x"}, func(d string) error {
		return os.Chtimes(d+"/x", time.Unix(1, 2), time.Unix(3, 4))
	}},
	{"truncate", func(d string) error { return writeZeros(d+"/x", 9) }, []string{"x"}, func(d string) error { return os.Truncate(d+"/x", 5) }},
	{"xattr", func(d string) error { return writeZeros(d+"/x", 1) }, []string{"x"}, func(d string) error { return unix.Setxattr(d+"/x", "user.a", []byte("b"), 0) }},
	{"write", func(d string) error { return writeZeros(d+"/x", 1) }, []string{"x"}, func(d string) error { return writeZeros(d+"/x", 7) }},
	{"growth of an open file", func(d string) error { return writeZeros(d+"/x", 1) }, []string{"x"}, func(d string) error {
		f, err := os.OpenFile(d+"/x", os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		_, err = f.Write([]byte("more"))
		return errors.Join(err, f.Sync(), f.Close())
	}},
}

// What the kernel of a mount answers by itself is never older than a change that has returned, on
// another mount or on the same one.
func TestLentNamesAreExact(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	other := mount(t, c, "c2", mountOptions{client: client.Config{CacheEntries: 10_000}})
	// All before the first loan: a directory that changes during a loan is not lent for a minute.
	for _, by := range []string{"another mount", "the same mount"} {
		for _, ch := range nameChanges {
			dir := other.at(by + " " + ch.name)
			require.NoError(t, os.Mkdir(dir, 0o755))
			if ch.setup != nil {
				require.NoError(t, ch.setup(dir))
			}
		}
	}
	one := mount(t, c, "c1", mountOptions{client: client.Config{CacheEntries: 10_000}})
	for by, m := range map[string]*mounted{"another mount": other, "the same mount": one} {
		for _, ch := range nameChanges {
			t.Run(ch.name+" by "+by, func(t *testing.T) {
				dir := by + " " + ch.name
				var paths []string
				for _, p := range ch.look {
					paths = append(paths, filepath.Join(one.at(dir), filepath.FromSlash(p)))
				}
				before := lend(t, one, paths...)
				require.NoError(t, ch.do(m.at(dir)))
				for i, p := range paths {
					now := describe(t, p)
					require.NotEqual(t, before[i], now, ch.look[i])
					require.Equal(t, describe(t, filepath.Join(other.at(dir), ch.look[i])), now, ch.look[i])
				}
			})
		}
	}
	require.Positive(t, one.client.Stats().LoanWaits)
}

// A change by the same client, but not through its mount, is seen on the mount at once.
func TestLentNamesAreExactBesideTheMount(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	other := mount(t, c, "c2")
	var names client.Inodes
	changes := map[string]func(client.Entry) error{
		"create": func(e client.Entry) error {
			_, err := names.Create(t.Context(), e.Parent, e.Name, createOptions)
			return err
		},
		"remove": func(e client.Entry) error {
			_, err := names.Remove(t.Context(), e.Parent, e.Name, client.RemoveOptions{})
			return err
		},
		"rename": func(e client.Entry) error {
			return names.Rename(t.Context(), e, client.Entry{Parent: e.Parent, Name: "elsewhere"}, client.RenameOptions{})
		},
		"mode": func(e client.Entry) error {
			a, err := names.Lookup(t.Context(), e.Parent, e.Name)
			if err == nil {
				_, err = names.SetAttr(t.Context(), a.Inode(), client.SetAttr{Mode: new(uint32(0o600))})
			}
			return err
		},
	}
	for name := range changes {
		require.NoError(t, os.Mkdir(other.at(name), 0o755))
		if name != "create" {
			require.NoError(t, writeZeros(other.at(name+"/x"), 1))
		}
	}
	m := mount(t, c, "c1", mountOptions{client: client.Config{CacheEntries: 10_000}})
	names = m.client.Inodes()
	for name, do := range changes {
		before := lend(t, m, m.at(name), m.at(name+"/x"))
		dir, err := m.client.Stat(t.Context(), name)
		require.NoError(t, err)
		require.NoError(t, do(client.Entry{Parent: dir.Inode(), Name: "x"}))
		require.NotEqual(t, before[1], describe(t, m.at(name+"/x")), name)
		if name != "mode" {
			require.NotEqual(t, before[0], describe(t, m.at(name)), name)
		}
	}
}

// The client of a mount may be cut off after its kernel has been lent names. Then a change waits
// until the leases of the client are over. The kernel shows nothing older afterwards.
func TestAKernelWhoseMountIsCutOffShowsNothingOld(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	other := mount(t, c, "c2")
	require.NoError(t, os.Mkdir(other.at("d"), 0o755))
	require.NoError(t, writeZeros(other.at("d/x"), 1))
	m := mount(t, c, "c1", mountOptions{client: client.Config{CacheEntries: 10_000}})
	before := lend(t, m, m.at("d/x"), m.at("d/y"))
	c.Net.Isolate("c1")
	require.NoError(t, os.Rename(other.at("d/x"), other.at("d/y")))
	seen := make(chan string, 2)
	for _, name := range []string{"d/x", "d/y"} {
		go func() {
			var st unix.Stat_t
			err := unix.Lstat(m.at(name), &st)
			seen <- fmt.Sprint(name, err == nil)
		}()
	}
	c.Net.Rejoin("c1", "*")
	require.ElementsMatch(t, []string{"d/xfalse", "d/ytrue"}, []string{<-seen, <-seen})
	require.NotEqual(t, before[0], describe(t, m.at("d/x")))
}
