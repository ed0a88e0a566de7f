package vfs_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/vfs"
)

// TestConformance checks every file system against the contract of vfs.FS.
func TestConformance(t *testing.T) {
	systems := map[string]func(t *testing.T) (vfs.FS, string){
		"os":  func(t *testing.T) (vfs.FS, string) { return vfs.OS{}, t.TempDir() },
		"mem": func(t *testing.T) (vfs.FS, string) { return vfs.NewMem(1), "/" },
		"fault": func(t *testing.T) (vfs.FS, string) {
			return vfs.NewFault(vfs.NewMem(1), func(vfs.Op) error { return nil }), "/"
		},
	}
	cases := map[string]func(t *testing.T, fsys vfs.FS, dir string){
		"open flags": conformOpen, "bytes": conformBytes, "space": conformSpace, "names": conformNames,
		"directories": conformDirs, "lock": conformLock, "direct": conformDirect, "concurrent": conformConcurrent,
	}
	for name, open := range systems {
		for what, run := range cases {
			t.Run(name+"/"+what, func(t *testing.T) {
				fsys, root := open(t)
				dir := filepath.Join(root, "top")
				require.NoError(t, fsys.MkdirAll(dir))
				run(t, fsys, dir)
			})
		}
	}
}

func write(t *testing.T, fsys vfs.FS, name, content string) {
	t.Helper()
	f, err := fsys.Open(name, vfs.Create|vfs.Truncate)
	require.NoError(t, err)
	n, err := f.WriteAt([]byte(content), 0)
	require.NoError(t, err)
	require.Equal(t, len(content), n)
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
}

func read(t *testing.T, fsys vfs.FS, name string) string {
	t.Helper()
	f, err := fsys.Open(name, vfs.Read)
	require.NoError(t, err)
	defer f.Close()
	size, err := f.Size()
	require.NoError(t, err)
	p := make([]byte, size)
	n, err := f.ReadAt(p, 0)
	if err != nil {
		require.ErrorIs(t, err, io.EOF)
	}
	return string(p[:n])
}

func conformOpen(t *testing.T, fsys vfs.FS, dir string) {
	name := filepath.Join(dir, "f")
	for _, flag := range []vfs.OpenFlag{vfs.Read, vfs.Write, vfs.Truncate} {
		_, err := fsys.Open(name, flag)
		require.ErrorIs(t, err, fs.ErrNotExist)
	}
	_, err := fsys.Open(filepath.Join(dir, "no", "f"), vfs.Create)
	require.ErrorIs(t, err, fs.ErrNotExist)

	f, err := fsys.Open(name, vfs.Create|vfs.Exclusive)
	require.NoError(t, err)
	require.Equal(t, name, f.Name())
	require.NoError(t, f.Close())
	require.ErrorIs(t, f.Close(), fs.ErrClosed)
	_, err = f.ReadAt(make([]byte, 1), 0)
	require.ErrorIs(t, err, fs.ErrClosed)
	require.ErrorIs(t, f.Sync(), fs.ErrClosed)
	_, err = fsys.Open(name, vfs.Create|vfs.Exclusive)
	require.ErrorIs(t, err, fs.ErrExist)

	write(t, fsys, name, "hello")
	f, err = fsys.Open(name, vfs.Read)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("x"), 0)
	require.ErrorIs(t, err, syscall.EBADF)
	require.NoError(t, f.Close())
	require.Equal(t, "hello", read(t, fsys, name))

	f, err = fsys.Open(name, vfs.Truncate)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.Equal(t, "", read(t, fsys, name))
	_, err = fsys.Open(dir, vfs.Write)
	require.ErrorIs(t, err, syscall.EISDIR)
}

func conformBytes(t *testing.T, fsys vfs.FS, dir string) {
	f, err := fsys.Open(filepath.Join(dir, "f"), vfs.Create)
	require.NoError(t, err)
	defer f.Close()
	_, err = f.WriteAt([]byte("tail"), 10_000)
	require.NoError(t, err)
	size, err := f.Size()
	require.NoError(t, err)
	require.EqualValues(t, 10_004, size)

	p := make([]byte, 20)
	n, err := f.ReadAt(p, 9_990)
	require.Equal(t, 14, n)
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, append(make([]byte, 10), "tail"...), p[:n])
	n, err = f.ReadAt(p, 20_000)
	require.Zero(t, n)
	require.ErrorIs(t, err, io.EOF)
	_, err = f.ReadAt(p, -1)
	require.Error(t, err)

	// Truncated bytes do not come back when the file grows.
	require.NoError(t, f.Truncate(10_002))
	require.NoError(t, f.Truncate(10_010))
	n, err = f.ReadAt(p, 10_000)
	require.Equal(t, 10, n)
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, append([]byte("ta"), make([]byte, 8)...), p[:n])
}

func conformSpace(t *testing.T, fsys vfs.FS, dir string) {
	name := filepath.Join(dir, "f")
	f, err := fsys.Open(name, vfs.Create)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.Allocate(0, 64<<10))
	size, err := f.Size()
	require.NoError(t, err)
	require.EqualValues(t, 64<<10, size)
	full := bytes.Repeat([]byte{7}, 64<<10)
	_, err = f.WriteAt(full, 0)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	before, err := fsys.Stat(name)
	require.NoError(t, err)
	require.GreaterOrEqual(t, before.Bytes, int64(64<<10))

	require.NoError(t, f.PunchHole(4096, 8192))
	require.NoError(t, f.Sync())
	after, err := fsys.Stat(name)
	require.NoError(t, err)
	require.EqualValues(t, 64<<10, after.Size)
	require.Equal(t, before.Bytes-8192, after.Bytes)
	clear(full[4096 : 4096+8192])
	require.Equal(t, string(full), read(t, fsys, name))

	usage, err := fsys.Usage(dir)
	require.NoError(t, err)
	require.NotZero(t, usage.Total)
	require.LessOrEqual(t, usage.Free, usage.Total)
}

func conformNames(t *testing.T, fsys vfs.FS, dir string) {
	at := func(name string) string { return filepath.Join(dir, name) }
	write(t, fsys, at("b"), "B")
	write(t, fsys, at("a"), "A")
	require.NoError(t, fsys.Link(at("a"), at("c")))
	require.ErrorIs(t, fsys.Link(at("a"), at("b")), fs.ErrExist)
	require.ErrorIs(t, fsys.Link(at("no"), at("d")), fs.ErrNotExist)
	names, err := fsys.List(dir)
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b", "c"}, names)

	open, err := fsys.Open(at("b"), vfs.Read)
	require.NoError(t, err)
	defer open.Close()
	require.NoError(t, fsys.Rename(at("a"), at("b")))
	require.ErrorIs(t, fsys.Rename(at("a"), at("b")), fs.ErrNotExist)
	require.Equal(t, "A", read(t, fsys, at("b")))
	p := make([]byte, 1)
	_, err = open.ReadAt(p, 0)
	require.NoError(t, err, "an open file outlives its name")
	require.Equal(t, "B", string(p))

	require.NoError(t, fsys.Remove(at("b")))
	require.ErrorIs(t, fsys.Remove(at("b")), fs.ErrNotExist)
	require.Equal(t, "A", read(t, fsys, at("c")))
	_, err = fsys.Stat(at("b"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, fsys.SyncDir(dir))
	require.ErrorIs(t, fsys.SyncDir(at("no")), fs.ErrNotExist)
}

func conformDirs(t *testing.T, fsys vfs.FS, dir string) {
	at := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, fsys.MkdirAll(at("x/y/z")))
	require.NoError(t, fsys.MkdirAll(at("x/y/z")))
	write(t, fsys, at("x/y/f"), "F")
	require.ErrorIs(t, fsys.MkdirAll(at("x/y/f")), syscall.ENOTDIR)
	info, err := fsys.Stat(at("x/y"))
	require.NoError(t, err)
	require.True(t, info.Dir)
	require.ErrorIs(t, fsys.Remove(at("x/y")), syscall.ENOTEMPTY)
	require.NoError(t, fsys.Rename(at("x/y"), at("w")))
	require.Equal(t, "F", read(t, fsys, at("w/f")))
	require.Error(t, fsys.Rename(at("w"), at("w/z/w")))
	require.NoError(t, fsys.RemoveAll(at("w")))
	require.NoError(t, fsys.RemoveAll(at("w")))
	require.NoError(t, fsys.Remove(at("x")))
	names, err := fsys.List(dir)
	require.NoError(t, err)
	require.Empty(t, names)
	_, err = fsys.List(at("x"))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func conformLock(t *testing.T, fsys vfs.FS, dir string) {
	name := filepath.Join(dir, "LOCK")
	held, err := fsys.Lock(name)
	require.NoError(t, err)
	_, err = fsys.Lock(name)
	require.ErrorIs(t, err, vfs.ErrLocked)
	require.NoError(t, held.Close())
	again, err := fsys.Lock(name)
	require.NoError(t, err)
	require.NoError(t, again.Close())
}

// aligned returns n bytes that O_DIRECT accepts.
func aligned(n int) []byte {
	p := make([]byte, n+4096)
	skip := -int(uintptr(unsafe.Pointer(&p[0]))) & 4095
	return p[skip : skip+n : skip+n]
}

func conformDirect(t *testing.T, fsys vfs.FS, dir string) {
	f, err := fsys.Open(filepath.Join(dir, "f"), vfs.Create|vfs.Exclusive|vfs.Direct)
	require.NoError(t, err)
	defer f.Close()
	p := aligned(8192)
	p[0], p[8191] = 1, 2
	_, err = f.WriteAt(p, 4096)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(4096+5000))
	q := aligned(16384)
	n, err := f.ReadAt(q, 0)
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, 4096+5000, n)
	require.EqualValues(t, 1, q[4096])
	if f.Direct() {
		_, err = f.WriteAt(p[:100], 0)
		require.ErrorIs(t, err, syscall.EINVAL)
		_, err = f.WriteAt(p[1:4097], 1)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
}

func conformConcurrent(t *testing.T, fsys vfs.FS, dir string) {
	f, err := fsys.Open(filepath.Join(dir, "f"), vfs.Create)
	require.NoError(t, err)
	defer f.Close()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			p := bytes.Repeat([]byte{byte(i + 1)}, 3000)
			q := make([]byte, 3000)
			for range 20 {
				_, err := f.WriteAt(p, int64(i)*3000)
				if err == nil {
					err = f.Sync()
				}
				if err == nil {
					_, err = f.ReadAt(q, int64(i)*3000)
				}
				if err != nil || !bytes.Equal(p, q) {
					t.Errorf("writer %d: %v", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestFaultRules(t *testing.T) {
	broken := errors.New("broken")
	mem := vfs.NewMem(1)
	var answer error
	var seen []vfs.Op
	fsys := vfs.NewFault(mem, func(op vfs.Op) error {
		seen = append(seen, op)
		return answer
	})
	f, err := fsys.Open("/f", vfs.Create)
	require.NoError(t, err)

	answer = broken
	n, err := f.WriteAt([]byte("abc"), 5)
	require.ErrorIs(t, err, broken)
	require.Zero(t, n)
	require.Equal(t, vfs.Op{Kind: vfs.OpWrite, Path: "/f", Off: 5, Len: 3}, seen[len(seen)-1])
	require.Equal(t, "", read(t, mem, "/f"))
	_, err = fsys.Open("/g", vfs.Create)
	require.ErrorIs(t, err, broken)
	_, err = mem.Stat("/g")
	require.ErrorIs(t, err, fs.ErrNotExist)

	answer = vfs.Afterwards(broken)
	_, err = f.WriteAt([]byte("abc"), 0)
	require.ErrorIs(t, err, broken)
	require.Equal(t, "abc", read(t, mem, "/f"), "the write took effect, its reply was lost")

	answer = vfs.Drop
	require.NoError(t, f.Sync())
	n, err = f.WriteAt([]byte("xyz"), 0)
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.Equal(t, "abc", read(t, mem, "/f"), "the write was dropped")
	require.Panics(t, func() { fsys.List("/") })
	answer = nil
	require.NoError(t, f.Close())
}

func TestMemIsFull(t *testing.T) {
	mem := vfs.NewMem(1)
	mem.SetCapacity(64 << 10)
	f, err := mem.Open("/f", vfs.Create)
	require.NoError(t, err)
	require.NoError(t, f.Allocate(0, 60<<10))
	require.ErrorIs(t, f.Allocate(60<<10, 8<<10), syscall.ENOSPC)
	n, err := f.WriteAt(make([]byte, 8<<10), 60<<10)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.Equal(t, 4<<10, n)
	require.NoError(t, f.PunchHole(0, 8<<10))
	_, err = f.WriteAt(make([]byte, 4<<10), 64<<10)
	require.NoError(t, err)
	require.NoError(t, mem.Remove("/f"))
	usage, err := mem.Usage("/")
	require.NoError(t, err)
	require.Equal(t, vfs.Usage{Total: 64 << 10, Free: 64 << 10}, usage)
}
