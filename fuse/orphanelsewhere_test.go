package fuse_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// sessionTerm is the lifetime of sessions where a test waits for what renewals do.
const sessionTerm = 12 * time.Second

// lingered waits until no file that lost its last name before the call lingers any more.
func lingered(t *testing.T, m *mounted) {
	t.Helper()
	inodes := m.client.Inodes()
	a, err := inodes.Create(t.Context(), m.client.Root(), "lingers", client.NodeOptions{Mode: 0o644})
	require.NoError(t, err)
	_, err = inodes.Remove(t.Context(), m.client.Root(), "lingers", client.RemoveOptions{})
	require.NoError(t, err)
	m.freed(t, a.Inode())
}

// freed waits until the service has no file of that number.
func (m *mounted) freed(t *testing.T, i moraine.InodeID) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, err := m.client.Inodes().Stat(t.Context(), i)
		return moraine.KindOf(err) == moraine.NotFound
	}, 2*time.Minute, 20*time.Millisecond, "the file was not given back")
}

// openFile is a file that a test has open and has not read.
type openFile struct {
	f     *os.File
	inode moraine.InodeID
	data  []byte
}

// openUnread writes a file by one mount, and opens it in another.
func openUnread(t *testing.T, in, by *mounted, name string) *openFile {
	t.Helper()
	o := &openFile{data: randomBytes(seed(t), 300<<10)}
	require.NoError(t, os.WriteFile(by.at(name), o.data, 0o644))
	var err error
	o.f, err = os.OpenFile(in.at(name), os.O_RDWR, 0)
	require.NoError(t, err)
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(int(o.f.Fd()), &st))
	o.inode = inode(st.Ino)
	return o
}

// lives requires that an open file without a name is whole, and can be changed.
func (o *openFile) lives(t *testing.T) {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(int(o.f.Fd()), &st))
	require.Zero(t, st.Nlink)
	require.EqualValues(t, len(o.data), st.Size)
	require.Equal(t, o.inode, inode(st.Ino))
	got, err := io.ReadAll(io.NewSectionReader(o.f, 0, 1<<20))
	require.NoError(t, err)
	require.True(t, bytes.Equal(o.data, got), "the file has other bytes")
	text := []byte("still here")
	_, err = o.f.WriteAt(text, 100_000)
	require.NoError(t, err)
	copy(o.data[100_000:], text)
	require.NoError(t, o.f.Sync())
}

// TestRemovedElsewhereWhileOpen: a mount has a file open that it has never read, and another client
// takes the last name from it. The mount reads and writes the file until it closes it, however
// long that takes. Then the service gives the space back.
func TestRemovedElsewhereWhileOpen(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1, SessionTimeout: sessionTerm})
	m, other := mount(t, c, "c1"), mount(t, c, "c2")
	for name, lose := range map[string]func(dir string) error{
		"unlink": func(dir string) error { return os.Remove(other.at(dir + "/file")) },
		"rename": func(dir string) error {
			if err := os.WriteFile(other.at(dir+"/new"), []byte("another"), 0o644); err != nil {
				return err
			}
			return os.Rename(other.at(dir+"/new"), other.at(dir+"/file"))
		},
		"rm -r":        func(dir string) error { return os.RemoveAll(other.at(dir)) },
		"the library":  func(dir string) error { return other.client.Remove(t.Context(), dir+"/file") },
		"a whole tree": func(dir string) error { return other.client.RemoveAll(t.Context(), dir) },
		"a commit": func(dir string) error {
			f, err := other.client.Create(t.Context(), dir+"/file", client.CreateOptions{Replace: true})
			if err != nil {
				return err
			}
			_, err = f.Commit(t.Context())
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := fmt.Sprintf("dir of %s", name)
			require.NoError(t, os.Mkdir(m.at(dir), 0o755))
			o := openUnread(t, m, other, filepath.Join(dir, "file"))
			require.NoError(t, lose(dir))
			var st unix.Stat_t
			require.NoError(t, unix.Fstat(int(o.f.Fd()), &st))
			require.Eventually(t, func() bool { // a tree is removed in the background
				return unix.Fstat(int(o.f.Fd()), &st) == nil && st.Nlink == 0
			}, time.Minute, 10*time.Millisecond)
			lingered(t, other)
			o.lives(t)
			require.NoError(t, o.f.Close())
			other.freed(t, o.inode)
		})
	}
	require.NoError(t, c.Check())
}

// TestRemovedElsewhereWhileOpenByMany: two mounts have a file open, and one of them removes it. Each
// uses it until its own close.
func TestRemovedElsewhereWhileOpenByMany(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1, SessionTimeout: sessionTerm})
	m, other := mount(t, c, "c1"), mount(t, c, "c2")
	o := openUnread(t, m, other, "file")
	same, err := os.Open(other.at("file"))
	require.NoError(t, err)
	require.NoError(t, os.Remove(other.at("file")))
	lingered(t, other)
	o.lives(t)
	require.NoError(t, o.f.Close())
	lingered(t, other)
	got, err := io.ReadAll(same)
	require.NoError(t, err)
	require.True(t, bytes.Equal(o.data, got))
	require.NoError(t, same.Close())
	m.freed(t, o.inode)
	require.NoError(t, c.Check())
}

// TestRemovedElsewhereWhileMapped: the same with a mapping. The child that has it ends with the test.
func TestRemovedElsewhereWhileMapped(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1, SessionTimeout: sessionTerm})
	m, other := mount(t, c, "c1"), mount(t, c, "c2")
	data := randomBytes(seed(t), 300<<10)
	require.NoError(t, os.WriteFile(other.at("file"), data, 0o644))
	peek := startPeeker(t, m.at("file"))
	require.Equal(t, fmt.Sprintf("%x", data[:peekBytes]), peek(0)) // the child has it mapped
	require.NoError(t, os.Remove(other.at("file")))
	lingered(t, other)
	for _, off := range []int{0, 100_000, 290_000} {
		require.Equal(t, fmt.Sprintf("%x", data[off:off+peekBytes]), peek(off))
	}
}

// lossy loses the answers to the first requests of a kind.
type lossy struct {
	transport.Dialer
	mu   sync.Mutex
	kind string
	left int
}

func (l *lossy) over(d transport.Dialer) transport.Dialer { l.Dialer = d; return l }

func (l *lossy) Metadata(addrs []string) transport.Metadata {
	return lossyMetadata{l.Dialer.Metadata(addrs), l}
}

type lossyMetadata struct {
	transport.Metadata
	l *lossy
}

func (m lossyMetadata) Do(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	resp, err := m.Metadata.Do(ctx, req)
	m.l.mu.Lock()
	defer m.l.mu.Unlock()
	if err == nil && m.l.left > 0 && string(wire.Op(req).Name()) == m.l.kind {
		m.l.left--
		return nil, &moraine.Error{Op: "test", Kind: moraine.Unavailable}
	}
	return resp, err
}

// TestKeepFaults: the requests by which a mount keeps a file that another one removed fail, or their
// answers are lost, or the leader ends before them. The mount keeps it, and gives it back.
func TestKeepFaults(t *testing.T) {
	for name, fault := range map[string]func(t *testing.T, c *incluster.Cluster, servers *gate, answers *lossy) (over func()){
		"keep fails":              refusals("keep"),
		"find_orphans fails":      refusals("findorphans"),
		"release fails":           refusals("release"),
		"no renewal for a while":  refusals("renewsession"),
		"keep: no answer":         losses("keep"),
		"find_orphans: no answer": losses("find_orphans"),
		"release: no answer":      losses("release"),
		"another leader": func(t *testing.T, c *incluster.Cluster, _ *gate, _ *lossy) func() {
			c.Kill("m1")
			require.NoError(t, c.Restart("m1"))
			return func() {}
		},
		"another leader after the keep": func(t *testing.T, c *incluster.Cluster, servers *gate, _ *lossy) func() {
			servers.silent("renewsession", 3) // it keeps, and cannot say so
			return func() {
				c.Kill("m1")
				require.NoError(t, c.Restart("m1"))
				servers.open()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := startCluster(t, incluster.Options{Seed: 1, SessionTimeout: sessionTerm})
			servers, answers := &gate{}, &lossy{}
			m := mount(t, c, "c1", mountOptions{over: func(d transport.Dialer) transport.Dialer { return servers.over(answers.over(d)) }})
			other := mount(t, c, "c2")
			o := openUnread(t, m, other, "file")
			over := fault(t, c, servers, answers)
			require.NoError(t, os.Remove(other.at("file")))
			time.Sleep(sessionTerm / 4) // some renewals
			over()
			lingered(t, other)
			o.lives(t)
			require.NoError(t, o.f.Close())
			other.freed(t, o.inode)
			require.NoError(t, c.Check())
		})
	}
}

// refusals has the servers refuse requests of a kind for a while.
func refusals(kind string) func(*testing.T, *incluster.Cluster, *gate, *lossy) func() {
	return func(_ *testing.T, _ *incluster.Cluster, servers *gate, _ *lossy) func() {
		servers.silent(kind, 0)
		return func() { servers.open() }
	}
}

// losses loses some answers to requests of a kind.
func losses(kind string) func(*testing.T, *incluster.Cluster, *gate, *lossy) func() {
	return func(_ *testing.T, _ *incluster.Cluster, _ *gate, answers *lossy) func() {
		answers.mu.Lock()
		defer answers.mu.Unlock()
		answers.kind, answers.left = kind, 3
		return func() {}
	}
}

// TestRemovedElsewhereOfADeadMount: a mount that has a removed file open is cut off, like one that
// was killed, before and after it keeps the file. The space comes back with the end of its session.
func TestRemovedElsewhereOfADeadMount(t *testing.T) {
	for name, keeps := range map[string]bool{"before it keeps the file": false, "after that": true} {
		t.Run(name, func(t *testing.T) {
			c := startCluster(t, incluster.Options{Seed: 1, SessionTimeout: sessionTerm / 2})
			m, other := mount(t, c, "c1"), mount(t, c, "c2")
			o := openUnread(t, m, other, "file")
			if !keeps {
				c.Net.Isolate("c1")
			}
			require.NoError(t, os.Remove(other.at("file")))
			if keeps {
				lingered(t, other)
				c.Net.Isolate("c1")
			}
			other.freed(t, o.inode)
			require.NoError(t, c.Check())
			c.Net.Rejoin("c1", "*")
			_ = o.f.Close() // the file is gone
		})
	}
}
