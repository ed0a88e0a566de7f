package fuse_test

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
)

// alone is a mount that requests exclusive leases.
var alone = mountOptions{client: client.Config{CacheEntries: 10_000, ExclusiveLeases: true}}

// holding makes files in a directory until the mount makes them without the
// metadata service.
func holding(t *testing.T, m *mounted, dir string) {
	t.Helper()
	for i := range 200 {
		before := m.client.Stats().LocalCreates
		require.NoError(t, os.WriteFile(fmt.Sprintf("%s/warm%03d", dir, i), nil, 0o644))
		if m.client.Stats().LocalCreates > before {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the mount gets no exclusive lease")
}

// A tree is written through a mount with exclusive leases. As soon as it is closed,
// it looks the same through every mount, with the same inode numbers.
func TestATreeMadeUnderExclusiveLeases(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	one, other := mount(t, c, "c1", alone), mount(t, c, "c2", alone)
	require.NoError(t, os.Mkdir(one.at("d"), 0o755))
	holding(t, one, one.at("d"))
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 60 {
				name := fmt.Sprintf("d/f%d-%02d", w, i)
				body := randomBytes(uint64(w*100+i), i*i*40)
				f, err := os.OpenFile(one.at(name), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o640)
				if err != nil {
					t.Error(err)
					return
				}
				_, err = f.Write(body)
				var open, closed syscall.Stat_t
				if err == nil {
					err = syscall.Fstat(int(f.Fd()), &open)
				}
				if err == nil && i%10 == 0 {
					err = f.Chmod(0o600)
				}
				if err == nil {
					err = f.Close()
				}
				var got []byte
				if err == nil && i%7 == 0 {
					if got, err = os.ReadFile(other.at(name)); err == nil && !bytes.Equal(got, body) {
						err = fmt.Errorf("%s has %d bytes, not %d", name, len(got), len(body))
					}
				}
				if err == nil {
					err = syscall.Stat(one.at(name), &closed)
				}
				if err == nil && (closed.Ino != open.Ino || closed.Size != int64(len(body))) {
					err = fmt.Errorf("%s is inode %d of %d bytes, was %d", name, closed.Ino, closed.Size, open.Ino)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	want := shell(t, `cd "$1"; find . -type f -printf '%p %s %i %m\n' | sort; find . -type f -exec md5sum {} + | sort`, one.at("d"))
	require.Equal(t, want, shell(t, `cd "$1"; find . -type f -printf '%p %s %i %m\n' | sort; find . -type f -exec md5sum {} + | sort`, other.at("d")))
	require.Positive(t, one.client.Stats().LocalCreates)
}

// For processes of the same machine, a file that the metadata service does not know
// yet behaves like any other.
func TestAFileThatTheServiceDoesNotKnowYet(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m := mount(t, c, "c1", alone)
	require.NoError(t, os.Mkdir(m.at("d"), 0o755))
	for what, do := range map[string]func(f *os.File, name string) error{
		"unlink":   func(f *os.File, name string) error { return os.Remove(name) },
		"rename":   func(f *os.File, name string) error { return os.Rename(name, m.at("moved")) },
		"link":     func(f *os.File, name string) error { return os.Link(name, name+".link") },
		"chmod":    func(f *os.File, name string) error { return os.Chmod(name, 0o600) },
		"truncate": func(f *os.File, name string) error { return f.Truncate(3) },
		"times":    func(f *os.File, name string) error { return os.Chtimes(name, time.Unix(5, 0), time.Unix(6, 0)) },
		"fsync":    func(f *os.File, name string) error { return f.Sync() },
		"xattr":    func(f *os.File, name string) error { return syscall.Setxattr(name, "user.x", []byte("y"), 0) },
		"open":     func(f *os.File, name string) error { _, err := os.ReadFile(name); return err },
		"list":     func(f *os.File, name string) error { _, err := os.ReadDir(m.at("d")); return err },
		"fsync of the directory": func(f *os.File, name string) error {
			d, err := os.Open(m.at("d"))
			if err == nil {
				err = d.Sync()
				d.Close()
			}
			return err
		},
		"append":  func(f *os.File, name string) error { return os.WriteFile(name, []byte("12345678"), 0) },
		"nothing": func(f *os.File, name string) error { return nil },
	} {
		t.Run(what, func(t *testing.T) {
			holding(t, m, m.at("d"))
			name := m.at("d/" + what)
			f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o644)
			require.NoError(t, err)
			_, err = f.WriteString("before")
			require.NoError(t, err)
			require.NoError(t, do(f, name))
			at, err := f.Seek(0, 2)
			require.NoError(t, err)
			_, err = f.WriteAt([]byte("after"), at)
			require.NoError(t, err)
			got := make([]byte, at+5)
			_, err = f.ReadAt(got, 0)
			require.NoError(t, err)
			require.Equal(t, "after", string(got[at:]))
			require.NoError(t, f.Close())
			switch what {
			case "unlink":
				require.NoFileExists(t, name)
				return
			case "rename":
				require.NoFileExists(t, name)
				name = m.at("moved")
			}
			got2, err := os.ReadFile(name)
			require.NoError(t, err)
			require.Equal(t, string(got), string(got2))
			shell(t, `rm -rf "$1"/*`, m.at("d"))
		})
	}
}
