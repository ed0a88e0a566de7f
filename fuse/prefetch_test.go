package fuse_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/fuse"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
)

// prefetching are the options of a mount that reads files of these names whole.
func prefetching(names ...string) mountOptions {
	o := leased()
	o.mount.Prefetch.Names = names
	return o
}

// holdsLease waits until a mount holds the lease of the directory in which another one makes files.
func (m *mounted) holdsLease(t *testing.T, other *mounted) (reads int) {
	t.Helper()
	require.NoError(t, os.WriteFile(other.at("lease.txt"), []byte("x"), 0o644))
	m.withPages(t, m.at("lease.txt"))
	return m.fsys.Reads()
}

// awaitPrefetched waits until a mount has read n bytes ahead in all.
func (m *mounted) awaitPrefetched(t *testing.T, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return m.fsys.Prefetched() >= n }, time.Minute, time.Millisecond)
	require.Equal(t, n, m.fsys.Prefetched())
}

// A file of such a name is read once it is opened, and a program that maps it then sends no request.
// Neither do the next open, and another program. A file of another name is left alone.
func TestAnOpenedFileIsReadWhole(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	other, m := mount(t, c, "c1"), mount(t, c, "c2", prefetching("*.distcp", "*.safetensors"))
	data := randomBytes(seed(t), 9<<20+777)
	for _, name := range []string{"model.safetensors", "model.txt"} {
		require.NoError(t, os.WriteFile(other.at(name), data, 0o644))
	}
	mapped, reads := startMapper(t), m.holdsLease(t, other)
	f, err := os.Open(m.at("model.safetensors"))
	require.NoError(t, err)
	m.awaitPrefetched(t, len(data))
	require.Equal(t, reads, m.fsys.Reads())
	require.Equal(t, hexDigest(data), mapped(m.at("model.safetensors")))
	require.NoError(t, f.Close())
	require.Eventually(t, func() bool { return m.fsys.PagesInUse() == 0 }, time.Minute, time.Millisecond)
	require.Equal(t, hexDigest(data), mapped(m.at("model.safetensors")))
	got, err := os.ReadFile(m.at("model.safetensors"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, got))
	require.Equal(t, reads, m.fsys.Reads(), "requests for pages that the kernel has")

	require.Equal(t, hexDigest(data), mapped(m.at("model.txt")))
	require.Greater(t, m.fsys.Reads(), reads)
	require.Equal(t, len(data), m.fsys.Prefetched())
}

// With a node cache, the bytes go there: a mount of the node that comes later needs no server.
func TestAnOpenedFileIsReadIntoTheNodesCache(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	other := mount(t, c, "c1")
	data := randomBytes(seed(t), 5<<20+777)
	require.NoError(t, os.WriteFile(other.at("part.bin"), data, 0o644))
	opts := prefetching("*.bin")
	opts.mount.Prefetch.CacheOnly = true
	opts.client.CacheDir, opts.client.CacheBytes = t.TempDir(), 1<<30
	m := mount(t, c, "c2", opts)
	m.holdsLease(t, other)
	f, err := os.Open(m.at("part.bin"))
	require.NoError(t, err)
	m.awaitPrefetched(t, len(data))
	require.Eventually(t, func() bool { return bytesBelow(t, opts.client.CacheDir) > int64(len(data)) }, time.Minute, time.Millisecond)
	require.NoError(t, f.Close())
	require.NoError(t, m.end())

	gets := &countedGets{}
	later := leased()
	later.client.CacheDir, later.client.CacheBytes = opts.client.CacheDir, opts.client.CacheBytes
	later.over = gets.over
	got, err := os.ReadFile(mount(t, c, "c2", later).at("part.bin"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, got))
	require.LessOrEqual(t, gets.n.Load(), int64(24), "of 33 chunks: the cache of the node leaves out what it cannot write at once")
}

// bytesBelow is how long all files below a directory are: the cache of a node writes behind.
func bytesBelow(t *testing.T, dir string) (n int64) {
	require.NoError(t, filepath.WalkDir(dir, func(_ string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil && info.Mode().IsRegular() {
			n += info.Size()
		}
		return err
	}))
	return n
}

// The last close ends a prefetch, whose requests the servers do not answer. So does the end of the mount.
func TestAPrefetchEndsWithTheLastClose(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	other := mount(t, c, "c1")
	data := randomBytes(seed(t), 5<<20)
	require.NoError(t, os.WriteFile(other.at("a.bin"), data, 0o644))
	gets := &countedGets{}
	gets.hang.Store(true)
	opts := prefetching("*.bin")
	opts.over = gets.over
	m := mount(t, c, "c2", opts)
	m.holdsLease(t, other)
	open := func() *os.File {
		f, err := os.Open(m.at("a.bin"))
		require.NoError(t, err)
		return f
	}
	running := func(yes bool) {
		t.Helper()
		require.Eventually(t, func() bool { return gets.waiting.Load() > 0 == yes }, time.Minute, time.Millisecond)
	}
	first, second := open(), open()
	running(true)
	require.NoError(t, first.Close())
	time.Sleep(50 * time.Millisecond)
	running(true)
	require.NoError(t, second.Close())
	running(false)
	require.Zero(t, m.fsys.Prefetched())
	third := open()
	running(true)
	_ = third.Close()
	require.NoError(t, m.end())
	running(false)
}

// A program that has a file mapped sees a change that another mount has made, though a prefetch has read
// the old bytes before it, and gets to give them to the kernel after it.
func TestAPrefetchBringsNoOldBytes(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	other := mount(t, c, "c1", leased())
	gets := &countedGets{release: make(chan struct{})}
	opts := prefetching("*")
	opts.over = gets.over
	m := mount(t, c, "c2", opts)
	s := seed(t)
	data := randomBytes(s, 3<<20)
	require.NoError(t, os.WriteFile(other.at("f"), data, 0o644))
	peek := startPeeker(t, m.at("f"))
	require.Eventually(t, func() bool { return gets.waiting.Load() > 0 }, time.Minute, time.Millisecond)
	w, err := os.OpenFile(other.at("f"), os.O_WRONLY, 0)
	require.NoError(t, err)
	p := randomBytes(s+1, 1<<20)
	_, err = w.WriteAt(p, 0)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	close(gets.release)
	require.Eventually(t, func() bool { return m.fsys.Prefetching() == 0 }, time.Minute, time.Millisecond)
	require.Equal(t, fmt.Sprintf("%x", p[:peekBytes]), peek(0))
	require.Equal(t, fmt.Sprintf("%x", data[2<<20:2<<20+peekBytes]), peek(2<<20))
	require.Zero(t, m.fsys.Prefetched())
}

func TestPatternsOfNamesAreChecked(t *testing.T) {
	for _, bad := range []string{"", "[a", "dir/*.bin"} {
		_, err := fuse.New(fuse.Config{Dir: "/x", Prefetch: fuse.Prefetch{Names: []string{"*.bin", bad}}}, fuse.Deps{})
		require.Equal(t, moraine.InvalidArgument, moraine.KindOf(err), bad)
	}
}

// countedGets counts the requests for chunks of a client, which may hang.
type countedGets struct {
	n, waiting atomic.Int64
	hang       atomic.Bool
	release    chan struct{} // if not nil, answers arrive once it is closed
}

func (g *countedGets) over(d transport.Dialer) transport.Dialer { return getDialer{d, g} }

type getDialer struct {
	transport.Dialer
	gets *countedGets
}

func (d getDialer) Chunks(node string, addrs []string) transport.Chunks {
	return getChunks{d.Dialer.Chunks(node, addrs), d.gets}
}

type getChunks struct {
	transport.Chunks
	gets *countedGets
}

func (c getChunks) Get(ctx context.Context, req *wire.GetChunk, dst []byte, each func([]byte)) (*wire.GetChunkReply, int, error) {
	c.gets.n.Add(1)
	if c.gets.hang.Load() {
		c.gets.waiting.Add(1)
		defer c.gets.waiting.Add(-1)
		<-ctx.Done()
		return nil, 0, ctx.Err()
	}
	reply, n, err := c.Chunks.Get(ctx, req, dst, each)
	if c.gets.release != nil {
		c.gets.waiting.Add(1)
		<-c.gets.release
		c.gets.waiting.Add(-1)
	}
	return reply, n, err
}

func hexDigest(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }
