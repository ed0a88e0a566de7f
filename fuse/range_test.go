package fuse_test

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// content adds the size and the bytes of a file.
func (l *callLog) content(path string) {
	b, err := os.ReadFile(path)
	l.did("content of "+filepath.Base(path), err, len(b), fmt.Sprintf("%x", sha256.Sum256(b)))
}

// opened opens a new file for a test's calls, until the test ends.
func opened(t *testing.T, path string) int {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT, 0o644)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// fallocate gives the results of a local file system, over bytes that are committed and
// bytes that are not.
func TestFallocate(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m := mount(t, c, "c1")
	data := randomBytes(seed(t), 3<<20)
	sameAsLocal(t, m, func(t *testing.T, l *callLog, dir string) {
		for _, synced := range []bool{false, true} {
			path := filepath.Join(dir, fmt.Sprint("file-", synced))
			fd := opened(t, path)
			write := func(off, n int) {
				wrote, err := unix.Pwrite(fd, data[off:off+n], int64(off))
				l.did("write", err, wrote)
				if synced {
					l.did("sync", unix.Fsync(fd))
				}
			}
			do := func(what string, mode uint32, off, n int64) {
				l.did(what, unix.Fallocate(fd, mode, off, n))
				l.stat(path)
				l.content(path)
			}
			write(0, 1<<20)
			do("allocate inside", 0, 10, 1000)
			do("allocate", 0, 1<<20-10, 100_000)
			do("allocate and keep the size", unix.FALLOC_FL_KEEP_SIZE, 1<<20, 1<<20)
			do("punch", unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 1000, 100_000)
			write(50_000, 30_000)
			do("punch again", unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 40_000, 20_000)
			do("punch a hole", unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 40_000, 20_000)
			do("punch past the end", unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 1<<20, 10<<20)
			write(2<<20, 1<<20)
			do("zeros", unix.FALLOC_FL_ZERO_RANGE, 2<<20+77, 500_000)
			do("zeros that make it longer", unix.FALLOC_FL_ZERO_RANGE, 3<<20-5, 100)
			do("zeros that keep the size", unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, 3<<20, 4096)
			do("punch all", unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 1<<40)
			write(5, 100_000)
			do("no bytes", 0, 0, 0)
			do("punch without keeping the size", unix.FALLOC_FL_PUNCH_HOLE, 0, 10)
			only, err := unix.Open(path, unix.O_RDONLY, 0)
			require.NoError(t, err)
			l.did("of a file open for reading", unix.Fallocate(only, 0, 0, 10))
			require.NoError(t, unix.Close(only))
		}
	})
	fd := opened(t, m.at("refused"))
	for _, mode := range []uint32{unix.FALLOC_FL_COLLAPSE_RANGE, unix.FALLOC_FL_INSERT_RANGE, unix.FALLOC_FL_UNSHARE_RANGE} {
		require.ErrorIs(t, unix.Fallocate(fd, mode, 0, 4096), unix.EOPNOTSUPP)
	}
	require.ErrorIs(t, unix.Fallocate(fd, 0, 0, moraine.MaxFileSize+1), unix.EFBIG)
}

// TestFallocateChangesTheTime: an fallocate that changes no byte and no size sets the time of change.
func TestFallocateChangesTheTime(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m := mount(t, c, "c1")
	fd := opened(t, m.at("file"))
	_, err := unix.Write(fd, make([]byte, 5000))
	require.NoError(t, err)
	for _, mode := range []uint32{0, unix.FALLOC_FL_KEEP_SIZE} {
		require.NoError(t, os.Chtimes(m.at("file"), time.Unix(1, 0), time.Unix(1, 0)))
		require.NoError(t, unix.Fallocate(fd, mode, 100, 100))
		var st unix.Stat_t
		require.NoError(t, unix.Fstat(fd, &st))
		require.NotEqual(t, int64(1), st.Mtim.Sec, "mode %#x", mode)
		require.EqualValues(t, 5000, st.Size)
	}
}

// An allocation makes a file longer than its mount knows it, and cuts nothing of what
// another mount appended.
func TestFallocateCutsNothing(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m, other := mount(t, c, "c1"), mount(t, c, "c2")
	fd := opened(t, m.at("file"))
	_, err := unix.Write(fd, []byte("short"))
	require.NoError(t, err)
	require.NoError(t, unix.Fsync(fd))
	data := randomBytes(seed(t), 1<<20)
	f, err := os.OpenFile(other.at("file"), os.O_WRONLY|os.O_APPEND, 0)
	require.NoError(t, err)
	_, err = f.Write(data)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, unix.Fallocate(fd, 0, 0, 100))
	require.NoError(t, unix.Fallocate(fd, unix.FALLOC_FL_ZERO_RANGE, 1, 3))
	got, err := os.ReadFile(other.at("file"))
	require.NoError(t, err)
	require.Equal(t, "s\x00\x00\x00t", string(got[:5]))
	require.Equal(t, sha256.Sum256(data), sha256.Sum256(got[5:]))
}

// SEEK_DATA and SEEK_HOLE find what a local file system finds, before and after the
// bytes are committed.
func TestSeekHoleAndData(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m := mount(t, c, "c1")
	const piece = 128 << 10
	data := randomBytes(seed(t), piece)
	sameAsLocal(t, m, func(t *testing.T, l *callLog, dir string) {
		path := filepath.Join(dir, "file")
		fd := opened(t, path)
		look := func(fd int) {
			for _, off := range []int64{0, 1, piece - 1, piece, 3 * piece, 4*piece + 5, 5 * piece, 7 * piece, 8*piece - 1, 8 * piece, 100 * piece} {
				for _, whence := range []int{unix.SEEK_DATA, unix.SEEK_HOLE} {
					at, err := unix.Seek(fd, off, whence)
					l.did(fmt.Sprint("seek ", whence, " from ", off), err, at)
				}
			}
		}
		look(fd)
		for _, i := range []int64{0, 1, 4, 5} {
			n, err := unix.Pwrite(fd, data, i*piece)
			l.did("write", err, n)
		}
		l.did("truncate", unix.Ftruncate(fd, 8*piece))
		look(fd)
		l.did("sync", unix.Fsync(fd))
		look(fd)
		n, err := unix.Pwrite(fd, data, 6*piece)
		l.did("write", err, n)
		l.did("punch", unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, piece/2, 4*piece))
		look(fd)
		again := opened(t, path)
		look(again)
	})
}

// copy_file_range copies what a local file system copies. Where it can, it copies no
// bytes: both files have the same stripes.
func TestCopyFileRange(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m := mount(t, c, "c1")
	s := seed(t)
	const size = 4 << 20
	data := randomBytes(s, size)
	sameAsLocal(t, m, func(t *testing.T, l *callLog, dir string) {
		rng := rand.New(rand.NewPCG(s, 1))
		paths := []string{filepath.Join(dir, "a"), filepath.Join(dir, "b")}
		fds := []int{opened(t, paths[0]), opened(t, paths[1])}
		for i := range fds {
			n, err := unix.Pwrite(fds[i], data[:size/(i+1)], 0)
			l.did("write", err, n)
		}
		for range 60 {
			i := rng.IntN(2)
			from, to, n := rng.Int64N(size), rng.Int64N(size*5/4), int(rng.Int64N(size))
			if rng.IntN(3) == 0 {
				n = rng.IntN(100_000)
			}
			switch rng.IntN(6) {
			case 0:
				at := rng.Int64N(size)
				wrote, err := unix.Pwrite(fds[i], data[:n/8], at)
				l.did("write", err, wrote)
			case 1:
				l.did("punch", unix.Fallocate(fds[i], unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, int64(n/4+1)))
			default:
				l.did("copy", copyRange(fds[i], from, fds[1-i], to, n))
			}
			l.content(paths[0])
			l.content(paths[1])
		}
		off := int64(0)
		n, err := unix.CopyFileRange(fds[0], &off, fds[0], new(int64), 4096, 0)
		l.did("overlapping copy", err, n)
	})

	src, dst := opened(t, m.at("src")), opened(t, m.at("dst"))
	_, err := unix.Write(src, data)
	require.NoError(t, err)
	require.NoError(t, copyRange(src, 1, dst, 7, size-1))
	stripes := func(path string) map[uint64]bool {
		a, err := m.client.Stat(t.Context(), path)
		require.NoError(t, err)
		resp, err := rawclient.Of(m.client.Client).Meta(t.Context(), &wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: uint64(a.Inode())}}})
		require.NoError(t, err)
		of := map[uint64]bool{}
		for _, e := range resp.GetExtents().Extents {
			of[e.Stripe] = true
		}
		return of
	}
	require.NotEmpty(t, stripes("src"))
	require.Equal(t, stripes("src"), stripes("dst"), "no bytes were copied")
}

// copyRange copies n bytes, or what there is up to the end of the source.
func copyRange(from int, off int64, to int, at int64, n int) error {
	for n > 0 {
		did, err := unix.CopyFileRange(from, &off, to, &at, n, 0)
		if err != nil || did == 0 {
			return err
		}
		n -= did
	}
	return nil
}
