package fuse_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/morainefs/moraine/integration/incluster"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// After one mount has closed a file, another mount that opens it reads the change:
// new files, and files that were extended, shortened, overwritten, replaced or
// mapped.
func TestCloseToOpen(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	mounts := []*mounted{mount(t, c, "c1"), mount(t, c, "c2")}
	mapped := startMapper(t)
	s := seed(t)
	r := rand.New(rand.NewPCG(s, 2))
	var model []byte
	for i := range 40 {
		w, rd := mounts[i%2], mounts[1-i%2]
		kind := r.IntN(4)
		switch kind {
		case 0: // replaced by a new one
			model = randomBytes(r.Uint64(), r.IntN(400<<10))
			require.NoError(t, os.WriteFile(w.at("new"), model, 0o644))
			require.NoError(t, os.Rename(w.at("new"), w.at("file")))
		case 1: // overwritten, perhaps past the end
			f, err := os.OpenFile(w.at("file"), os.O_RDWR|os.O_CREATE, 0o644)
			require.NoError(t, err)
			p, off := randomBytes(r.Uint64(), 1+r.IntN(100<<10)), r.IntN(len(model)+50<<10)
			_, err = f.WriteAt(p, int64(off))
			require.NoError(t, err)
			model = overwrite(model, p, off)
			require.NoError(t, f.Close())
		case 2: // truncated or extended
			f, err := os.OpenFile(w.at("file"), os.O_RDWR|os.O_CREATE, 0o644)
			require.NoError(t, err)
			n := r.IntN(len(model) + 50<<10)
			require.NoError(t, f.Truncate(int64(n)))
			model = append(model[:min(n, len(model)):min(n, len(model))], make([]byte, max(0, n-len(model)))...)
			require.NoError(t, f.Close())
		case 3: // appended to
			f, err := os.OpenFile(w.at("file"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
			require.NoError(t, err)
			p := randomBytes(r.Uint64(), 1+r.IntN(100<<10))
			_, err = f.Write(p)
			require.NoError(t, err)
			model = append(model[:len(model):len(model)], p...)
			require.NoError(t, f.Close())
		}
		for _, m := range []*mounted{rd, w} {
			got, err := os.ReadFile(m.at("file"))
			require.NoError(t, err)
			require.True(t, bytes.Equal(model, got), "step %d, kind %d: %d bytes read, %d expected", i, kind, len(got), len(model))
			require.Equal(t, fmt.Sprintf("%x", sha256.Sum256(model)), mapped(m.at("file")), "step %d, kind %d, mapped", i, kind)
		}
	}
}

func overwrite(model, p []byte, off int) []byte {
	out := append(model[:len(model):len(model)], make([]byte, max(0, off+len(p)-len(model)))...)
	copy(out[off:], p)
	return out
}

// A mapped file can be read at any place, privately and shared, by several readers
// concurrently, and written. Writes through the map and past it are visible both
// ways, and elsewhere after an fsync.
func TestMapped(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m, other := mount(t, c, "c1"), mount(t, c, "c2")
	s := seed(t)
	data := randomBytes(s, 3<<20+777)
	require.NoError(t, os.WriteFile(other.at("file"), data, 0o644))
	child(t, "map-random", m.at("file"), fmt.Sprint(s), fmt.Sprint(len(data)))
	child(t, "map-write", m.at("file"))
	copy(data[1<<20:], throughMemory)
	copy(data[2<<20:], pastIt)
	for _, m := range []*mounted{m, other} {
		got, err := os.ReadFile(m.at("file"))
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, got))
	}
}

// Appends of two mounts follow each other; none is lost or torn.
func TestAppendsOfTwoMounts(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	mounts := []*mounted{mount(t, c, "c1"), mount(t, c, "c2")}
	const lines = 25
	var g sync.WaitGroup
	for i, m := range mounts {
		g.Go(func() {
			f, err := os.OpenFile(m.at("log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
			if err != nil {
				t.Error(err)
				return
			}
			for n := range lines {
				if _, err := fmt.Fprintf(f, "mount %d line %d\n", i, n); err != nil {
					t.Error(err)
				}
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	g.Wait()
	got, err := os.ReadFile(mounts[0].at("log"))
	require.NoError(t, err)
	next := [2]int{}
	for line := range strings.Lines(string(got)) {
		var i, n int
		_, err := fmt.Sscanf(line, "mount %d line %d\n", &i, &n)
		require.NoError(t, err, line)
		require.Equal(t, next[i], n, "of mount %d", i)
		next[i]++
	}
	require.Equal(t, [2]int{lines, lines}, next)
}

// An open file may lose its last name, by an unlink or by a rename onto it. It
// stays whole for its users, to read and to write. It is removed when they have
// closed it.
func TestUnlinkWhileOpen(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m := mount(t, c, "c1")
	for name, lose := range map[string]func(path string) error{
		"unlink": os.Remove,
		"rename": func(path string) error {
			if err := os.WriteFile(path+".new", []byte("another"), 0o644); err != nil {
				return err
			}
			return os.Rename(path+".new", path)
		},
	} {
		t.Run(name, func(t *testing.T) {
			data := randomBytes(seed(t), 300<<10)
			path := m.at(name)
			require.NoError(t, os.WriteFile(path, data, 0o644))
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			require.NoError(t, err)
			var before, after unix.Stat_t
			require.NoError(t, unix.Fstat(int(f.Fd()), &before))
			require.NoError(t, lose(path))
			require.NoError(t, unix.Fstat(int(f.Fd()), &after))
			require.Equal(t, before.Ino, after.Ino)
			require.Zero(t, after.Nlink)
			_, err = f.WriteAt([]byte("still here"), 100_000)
			require.NoError(t, err)
			copy(data[100_000:], "still here")
			require.NoError(t, f.Sync())
			got, err := io.ReadAll(f)
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, got))
			// It can be reopened through the open descriptor.
			again, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
			require.NoError(t, err)
			require.NoError(t, f.Close())
			got, err = io.ReadAll(again)
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, got))
			require.NoError(t, again.Close())
			// The mount learns of the last close after the close has returned.
			require.Eventually(t, func() bool {
				_, err := m.client.Inodes().Stat(t.Context(), inode(after.Ino))
				return err != nil
			}, time.Minute, 5*time.Millisecond, "it was not given back")
		})
	}
}

// A program that opens a file while it is replaced gets the old or the new one,
// whole. If it is replaced twice during the open, the kernel, which retries once,
// returns ESTALE, as on NFS.
func TestOpenWhileReplaced(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m := mount(t, c, "c1")
	const rounds = 60
	require.NoError(t, os.WriteFile(m.at("file"), fmt.Appendf(nil, "%06d", 0), 0o644))
	var g errgroup.Group
	done := make(chan struct{})
	g.Go(func() error {
		defer close(done)
		for i := range rounds {
			if err := os.WriteFile(m.at("new"), fmt.Appendf(nil, "%06d", i+1), 0o644); err != nil {
				return err
			}
			if err := os.Rename(m.at("new"), m.at("file")); err != nil {
				return err
			}
		}
		return nil
	})
	last := 0
	for over := false; !over; {
		select {
		case <-done:
			over = true
		default:
		}
		f, err := os.Open(m.at("file"))
		if errors.Is(err, syscall.ESTALE) && !over {
			continue
		}
		require.NoError(t, err)
		_, err = f.Stat()
		require.NoError(t, err)
		got, err := io.ReadAll(f)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		n, err := strconv.Atoi(string(got))
		require.NoError(t, err)
		require.GreaterOrEqual(t, n, last)
		last = n
	}
	require.NoError(t, g.Wait())
	require.Equal(t, rounds, last)
}
