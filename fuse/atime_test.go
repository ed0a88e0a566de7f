package fuse_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/fuse"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// longAgo is an atime that each read raises.
var longAgo = time.Unix(1_000_000_000, 5)

// collecting sends no reads by itself before the end of the mount.
var collecting = fuse.Config{AtimeDelay: time.Hour}

// atimeOf is the atime that a stat shows.
func atimeOf(t *testing.T, path string) time.Time {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Stat(path, &st))
	return time.Unix(st.Atim.Unix())
}

// unread makes a file that nobody has read.
func unread(t *testing.T, m *mounted, name string) {
	t.Helper()
	require.NoError(t, os.WriteFile(m.at(name), []byte("text of "+name), 0o644))
	require.NoError(t, os.Chtimes(m.at(name), longAgo, longAgo))
}

// requestsSeen counts the requests of a mount by kind.
type requestsSeen struct {
	mu   sync.Mutex
	kind map[string]int
}

func (r *requestsSeen) over(under transport.Dialer) transport.Dialer {
	return (&counted{see: func(kind string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.kind == nil {
			r.kind = map[string]int{}
		}
		r.kind[kind]++
	}}).over(under)
}

func (r *requestsSeen) of(kind string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kind[kind]
}

// TestAReadRaisesTheAtime: a read of a file that nobody has read since its last change raises the atime, once. The
// mount shows that at once, and another mount after the next request. No other attribute changes.
func TestAReadRaisesTheAtime(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	var seen requestsSeen
	m, other := mount(t, c, "c1", mountOptions{over: seen.over, mount: collecting}), mount(t, c, "c2")
	unread(t, other, "file")
	require.Equal(t, longAgo, atimeOf(t, m.at("file")))
	before := describe(t, m.at("file"))
	began := time.Now()
	got, err := os.ReadFile(m.at("file"))
	require.NoError(t, err)
	require.Equal(t, "text of file", string(got))
	first := atimeOf(t, m.at("file"))
	require.False(t, first.Before(began), "%v", first)
	require.Equal(t, longAgo, atimeOf(t, other.at("file")), "it is sent later")
	require.Zero(t, seen.of("raise_atimes"))

	m.fsys.SendAtimes(t.Context())
	require.Equal(t, 1, seen.of("raise_atimes"))
	fresh := mount(t, c, "c3")
	for _, at := range []*mounted{m, fresh} {
		require.Equal(t, first, atimeOf(t, at.at("file")))
		require.Equal(t, before, describe(t, at.at("file")))
	}

	require.NoError(t, os.Chmod(other.at("file"), 0o640)) // the caches drop the attributes
	for _, at := range []*mounted{m, other, fresh} {
		require.Equal(t, first, atimeOf(t, at.at("file")))
	}
	// It changed since: the next read counts, and the one after that does not.
	_, err = os.ReadFile(m.at("file"))
	require.NoError(t, err)
	second := atimeOf(t, m.at("file"))
	require.True(t, second.After(first))
	m.fsys.SendAtimes(t.Context())
	require.Equal(t, 2, seen.of("raise_atimes"))
	for range 3 {
		_, err = os.ReadFile(m.at("file"))
		require.NoError(t, err)
		require.Equal(t, second, atimeOf(t, m.at("file")))
	}
	m.fsys.SendAtimes(t.Context())
	require.Equal(t, 2, seen.of("raise_atimes"))
}

func fileInode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Stat(path, &st))
	return st.Ino
}

// TestAReadRecallsNothing: others keep names, attributes and pages when a read raises an atime.
func TestAReadRecallsNothing(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m, other := mount(t, c, "c1", mountOptions{mount: collecting}), mount(t, c, "c2")
	unread(t, other, "file")
	_, err := os.ReadFile(m.at("file"))
	require.NoError(t, err)
	lend(t, other, other.at("file"))
	before := describe(t, other.at("file"))
	misses := other.client.Stats().CacheMisses
	m.fsys.SendAtimes(t.Context())
	require.Equal(t, before, describe(t, other.at("file")))
	_, err = other.client.Inodes().Stat(t.Context(), inode(fileInode(t, other.at("file"))))
	require.NoError(t, err)
	require.Equal(t, misses, other.client.Stats().CacheMisses)
}

// TestReadsThatRaiseNoAtime: with noatime, on a read-only mount, and by a file opened with O_NOATIME.
func TestReadsThatRaiseNoAtime(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	maker := mount(t, c, "maker")
	for name, r := range map[string]struct {
		mount fuse.Config
		flags int
	}{
		"noatime":   {fuse.Config{NoAtime: true}, 0},
		"read-only": {fuse.Config{ReadOnly: true}, 0},
		"O_NOATIME": {fuse.Config{}, unix.O_NOATIME},
	} {
		t.Run(name, func(t *testing.T) {
			var seen requestsSeen
			m := mount(t, c, "c-"+name, mountOptions{mount: r.mount, over: seen.over})
			unread(t, maker, name)
			for range 2 { // the kernel has the pages at the second open
				f, err := os.OpenFile(m.at(name), os.O_RDONLY|r.flags, 0)
				require.NoError(t, err)
				_, err = io.ReadAll(f)
				require.NoError(t, err)
				require.NoError(t, f.Close())
			}
			require.Equal(t, longAgo, atimeOf(t, m.at(name)))
			require.NoError(t, m.end())
			require.Zero(t, seen.of("raise_atimes"))
			require.Equal(t, longAgo, atimeOf(t, maker.at(name)))
		})
	}
}

// TestASecondEpochSendsNothing: files whose pages the kernel has are read again without a request, until a day has
// passed. Then their opens count as reads, and all are in one request.
func TestASecondEpochSendsNothing(t *testing.T) {
	const files = 50
	c := startCluster(t, incluster.Options{Seed: 1})
	var seen requestsSeen
	var ahead atomic.Int64
	maker := mount(t, c, "maker")
	m := mount(t, c, "c1", mountOptions{over: seen.over, mount: collecting, now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
	require.NoError(t, os.Mkdir(maker.at("set"), 0o755))
	for i := range files {
		unread(t, maker, fmt.Sprintf("set/%d", i))
	}
	epoch := func() {
		for i := range files {
			_, err := os.ReadFile(m.at(fmt.Sprintf("set/%d", i)))
			require.NoError(t, err)
		}
	}
	epoch()
	m.fsys.SendAtimes(t.Context())
	require.Equal(t, 1, seen.of("raise_atimes"))
	epoch()
	reads := m.fsys.Reads()
	epoch()
	require.Equal(t, reads, m.fsys.Reads(), "the kernel has the pages")
	m.fsys.SendAtimes(t.Context())
	require.Equal(t, 1, seen.of("raise_atimes"))

	ahead.Store(int64(25 * time.Hour))
	epoch()
	require.Equal(t, reads, m.fsys.Reads())
	for i := range files {
		require.True(t, atimeOf(t, m.at(fmt.Sprintf("set/%d", i))).After(time.Now().Add(24*time.Hour)))
	}
	m.fsys.SendAtimes(t.Context())
	require.Equal(t, 2, seen.of("raise_atimes"))
}

// TestAnAtimeThatIsSetStays: what utimens sets counts, also after a read that is not sent, or is on its way.
func TestAnAtimeThatIsSetStays(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m, other := mount(t, c, "c1", mountOptions{mount: collecting}), mount(t, c, "c2")
	for i := range 20 {
		name := fmt.Sprint("file", i)
		unread(t, m, name)
		_, err := os.ReadFile(m.at(name))
		require.NoError(t, err)
		require.NotEqual(t, longAgo, atimeOf(t, m.at(name)))
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			if i > 0 {
				m.fsys.SendAtimes(context.WithoutCancel(t.Context()))
			}
		}()
		require.NoError(t, os.Chtimes(m.at(name), longAgo, longAgo))
		<-sent
		m.fsys.SendAtimes(t.Context())
		require.Equal(t, longAgo, atimeOf(t, m.at(name)))
		require.Equal(t, longAgo, atimeOf(t, other.at(name)))
	}
	// Another mount sets it, after the reads here were sent.
	_, err := os.ReadFile(m.at("file0"))
	require.NoError(t, err)
	m.fsys.SendAtimes(t.Context())
	require.NoError(t, os.Chtimes(other.at("file0"), longAgo, longAgo))
	require.Equal(t, longAgo, atimeOf(t, m.at("file0")))
}

// TestAtimesAreSentAtTheEnd: an unmount sends what was read, and so does a mount by itself after a while.
func TestAtimesAreSentAtTheEnd(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	var seen requestsSeen
	maker := mount(t, c, "maker")
	m := mount(t, c, "c1", mountOptions{over: seen.over, mount: fuse.Config{AtimeDelay: time.Millisecond}})
	unread(t, maker, "a")
	unread(t, maker, "b")
	_, err := os.ReadFile(m.at("a"))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return seen.of("raise_atimes") == 1 }, time.Minute, time.Millisecond)
	require.NoError(t, m.end())

	m = mount(t, c, "c2", mountOptions{over: seen.over, mount: collecting})
	_, err = os.ReadFile(m.at("b"))
	require.NoError(t, err)
	require.NoError(t, m.end())
	require.Equal(t, 2, seen.of("raise_atimes"))
	require.True(t, atimeOf(t, mount(t, c, "c3").at("b")).After(longAgo))
}

// TestTooManyReadsAreDropped: the mount collects a bounded number of reads. One that was dropped counts again later.
func TestTooManyReadsAreDropped(t *testing.T) {
	const files = fuse.MaxUnsentAtimes + 10
	c := startCluster(t, incluster.Options{Seed: 1})
	var seen requestsSeen
	m := mount(t, c, "c1", mountOptions{over: seen.over, mount: collecting})
	require.NoError(t, os.Mkdir(m.at("set"), 0o755))
	for i := range files {
		require.NoError(t, os.WriteFile(m.at(fmt.Sprintf("set/%d", i)), []byte("x"), 0o644))
	}
	epoch := func() {
		for i := range files {
			_, err := os.ReadFile(m.at(fmt.Sprintf("set/%d", i)))
			require.NoError(t, err)
		}
	}
	epoch()
	require.Equal(t, 10, m.fsys.AtimesDropped())
	m.fsys.SendAtimes(t.Context())
	require.Equal(t, fuse.MaxUnsentAtimes/wire.MaxRaiseAtimes, seen.of("raise_atimes"))
	epoch()
	require.Equal(t, 10, m.fsys.AtimesDropped())
	m.fsys.SendAtimes(t.Context())
	require.Equal(t, fuse.MaxUnsentAtimes/wire.MaxRaiseAtimes+1, seen.of("raise_atimes"))
	last := m.at(fmt.Sprintf("set/%d", files-1))
	require.True(t, atimeOf(t, last).After(modTime(t, last)))
}

func modTime(t *testing.T, path string) time.Time {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	return info.ModTime()
}

// TestASessionThatMayOnlyReadSendsOneBatch: the service refuses it, and the mount sends no other one.
func TestASessionThatMayOnlyReadSendsOneBatch(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	var seen requestsSeen
	maker := mount(t, c, "maker")
	unread(t, maker, "file")
	m := mount(t, c, "c1", mountOptions{mount: collecting, over: func(under transport.Dialer) transport.Dialer { return seen.over(&refusing{under}) }})
	for range 3 {
		_, err := os.ReadFile(m.at("file"))
		require.NoError(t, err)
		m.fsys.SendAtimes(t.Context())
	}
	require.Equal(t, 1, seen.of("raise_atimes"))
	require.Equal(t, longAgo, atimeOf(t, m.at("file")))
}

// refusing answers RaiseAtimes as the service answers a session that may only read.
type refusing struct{ transport.Dialer }

func (d *refusing) Metadata(addrs []string) transport.Metadata {
	return refusingMetadata{d.Dialer.Metadata(addrs)}
}

type refusingMetadata struct{ transport.Metadata }

func (m refusingMetadata) Do(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	if req.GetRaiseAtimes() != nil {
		return nil, &moraine.Error{Op: "apply", Kind: moraine.ReadOnly}
	}
	return m.Metadata.Do(ctx, req)
}
