package agent_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/client/ckpt/agentproto/fileproto"
)

// filePeer is a program that uses files through the agent.
type filePeer struct {
	t *testing.T
	c *agentproto.Conn
}

func (n *node) filePeer() *filePeer {
	n.t.Helper()
	c, err := agentproto.Dial(n.t.Context(), n.socket())
	require.NoError(n.t, err)
	n.t.Cleanup(func() { _ = c.Close() })
	return &filePeer{n.t, c}
}

// ask makes a request that may fail. Descriptors of the reply end with the test.
func (p *filePeer) ask(req agentproto.Request) (*agentproto.Reply, *os.File, error) {
	p.t.Helper()
	reply, fds, err := p.c.Exchange(p.t.Context(), &req)
	for _, f := range fds {
		p.t.Cleanup(func() { _ = f.Close() })
	}
	if len(fds) > 0 {
		return reply, fds[0], err
	}
	return reply, nil, err
}

// write writes a file in pieces of at most n bytes, and commits it.
func (p *filePeer) write(path string, data []byte, n int, exclusive bool) error {
	p.t.Helper()
	reply, f, err := p.ask(agentproto.Request{Create: &fileproto.Create{Path: fileproto.Name(path), Bytes: int64(n), Exclusive: exclusive, Parents: true}})
	if err != nil {
		return err
	}
	require.GreaterOrEqual(p.t, reply.Create.Bytes, int64(n))
	for at := 0; at < len(data); at += n {
		piece := data[at:min(at+n, len(data))]
		_, err := f.WriteAt(piece, 0)
		require.NoError(p.t, err)
		reply, _, err := p.ask(agentproto.Request{Append: &fileproto.Append{Bytes: int64(len(piece))}})
		if err != nil {
			return err
		}
		require.Equal(p.t, int64(at+len(piece)), reply.Append.Bytes)
	}
	reply, _, err = p.ask(agentproto.Request{Commit: &fileproto.Commit{}})
	if err == nil {
		require.Equal(p.t, int64(len(data)), reply.Commit.Bytes)
	}
	return err
}

// read reads a range of a file, and returns the size of the file too.
func (p *filePeer) read(path string, off, n int64, reuse bool) ([]byte, *fileproto.FetchFileReply) {
	p.t.Helper()
	reply, f, err := p.ask(agentproto.Request{FetchFile: &fileproto.FetchFile{Path: fileproto.Name(path), Offset: off, Bytes: n, Reuse: reuse}})
	require.NoError(p.t, err)
	got := make([]byte, reply.FetchFile.Bytes)
	_, err = f.ReadAt(got, 0)
	require.NoError(p.t, err)
	return got, reply.FetchFile
}

// TestFilesThroughTheAgent: a peer writes files, and others list and read them, whole and in ranges.
// A file that is not committed does not exist.
func TestFilesThroughTheAgent(t *testing.T) {
	n := newNode(t, 4*slotBytes)
	n.start(0)
	p, other := n.filePeer(), n.filePeer()
	want := bytes.Join([][]byte{data(1, 0), data(2, 0), data(3, 0)}, nil)
	require.NoError(t, p.write("/data/set/a", want, 250_000, false))

	got, info := other.read("/data/set/a", 0, int64(len(want)), false)
	require.Equal(t, want, got)
	require.Equal(t, int64(len(want)), info.Size)
	got, _ = other.read("/data/set/a", 299_990, 400_000, false)
	require.Equal(t, want[299_990:699_990], got)
	got, _ = other.read("/data/set/a", int64(len(want))-10, 4096, true)
	require.Equal(t, want[len(want)-10:], got, "a range past the end is shorter")

	require.True(t, hasKind(p.write("/data/set/a", want, 250_000, true), moraine.Exists))
	_, _, err := p.ask(agentproto.Request{Create: &fileproto.Create{Path: "/data/set/b", Bytes: 10}})
	require.NoError(t, err)
	_, _, err = p.ask(agentproto.Request{Append: &fileproto.Append{Bytes: 10}})
	require.NoError(t, err)
	require.NoError(t, p.c.Close())
	_, _, err = other.ask(agentproto.Request{Stat: &fileproto.Stat{Path: "/data/set/b"}})
	require.True(t, hasKind(err, moraine.NotFound), "it was not committed")

	c, err := n.client(t.Context())
	require.NoError(t, err)
	defer c.Close()
	attr, err := c.Stat(t.Context(), "/data/set/a")
	require.NoError(t, err)
	require.Equal(t, [2]uint32{uint32(os.Getuid()), uint32(os.Getgid())}, [2]uint32{attr.UID(), attr.GID()}, "it belongs to the peer's user")
	reply, _, err := other.ask(agentproto.Request{Stat: &fileproto.Stat{Path: "/data/set/a"}})
	require.NoError(t, err)
	require.Equal(t, fileproto.Entry{Name: "a", Type: fileproto.File, Bytes: int64(len(want)), Modified: attr.ModTime().UnixNano(), Version: info.Version}, *reply.Stat)
}

// TestRangesAreOfOneVersion: a file that is replaced while a connection reads it gives no
// mixture, and a new connection reads the new one.
func TestRangesAreOfOneVersion(t *testing.T) {
	n := newNode(t, 4*slotBytes)
	n.start(0)
	p, w := n.filePeer(), n.filePeer()
	require.NoError(t, w.write("/f", data(1, 0), partBytes, false))
	before, was := p.read("/f", 0, 1000, false)
	require.NoError(t, w.write("/f", data(2, 0), partBytes, false))
	got, is := p.read("/f", 1000, 1000, true)
	require.Equal(t, data(1, 0)[:2000], append(before, got...))
	require.Equal(t, was.Version, is.Version)
	require.Equal(t, was.Slot, is.Slot, "the memory was used again")
	got, is = n.filePeer().read("/f", 0, 1000, false)
	require.Equal(t, data(2, 0)[:1000], got)
	require.NotEqual(t, was.Version, is.Version)
}

// TestABigDirectoryIsListedInPages: each entry comes once, in order of name.
func TestABigDirectoryIsListedInPages(t *testing.T) {
	n := newNode(t, 4*slotBytes)
	n.start(0)
	c, err := n.client(t.Context())
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Mkdir(t.Context(), "/d", 0o755)
	require.NoError(t, err)
	var want []string
	for i := range 25 {
		want = append(want, fmt.Sprintf("e%02d", i))
		_, err := c.Mkdir(t.Context(), "/d/"+want[i], 0o755)
		require.NoError(t, err)
	}
	_, err = c.Symlink(t.Context(), "e00", "/d/link")
	require.NoError(t, err)
	dir, err := c.Stat(t.Context(), "/d")
	require.NoError(t, err)
	_, err = c.Inodes().Mknod(t.Context(), dir.Inode(), "pipe", client.TypeFifo, 0, client.NodeOptions{Mode: 0o600})
	require.NoError(t, err)
	p := n.filePeer()
	page := func(after string) []fileproto.Entry {
		reply, _, err := p.ask(agentproto.Request{List: &fileproto.List{Path: "/d", After: fileproto.Name(after), Limit: 10}})
		require.NoError(t, err)
		return reply.List.Entries
	}
	var got []string
	for entries := page(""); len(entries) > 0; entries = page(got[len(got)-1]) {
		for _, e := range entries {
			got = append(got, string(e.Name))
		}
	}
	require.Equal(t, append(want, "link", "pipe"), got)
	require.EqualValues(t, "e06", page("e05")[0].Name, "from any name on")
	require.Equal(t, fileproto.Link, page("e24")[0].Type)
	require.Equal(t, fileproto.Other, page("link")[0].Type)
	_, _, err = p.ask(agentproto.Request{List: &fileproto.List{Path: "/nothing"}})
	require.True(t, hasKind(err, moraine.NotFound))
}

// TestAFetchUsesNoSlotThatWasCut: the slot of a fetch was cut by somebody who could write to it. The next
// fetch that would use it again gets another one; the agent goes on.
func TestAFetchUsesNoSlotThatWasCut(t *testing.T) {
	n := newNode(t, 3*slotBytes)
	n.start(0)
	p := n.filePeer()
	want := data(1, 0)
	require.NoError(t, p.write("/f", want, partBytes, false))
	got, first := p.read("/f", 0, partBytes, false)
	require.Equal(t, want, got)
	require.NoError(t, os.Truncate(filepath.Join(n.arena, first.Slot), 0))
	got, second := p.read("/f", 0, partBytes, true)
	require.Equal(t, want, got)
	require.NotEqual(t, first.Slot, second.Slot)
	got, third := n.filePeer().read("/f", 0, partBytes, false)
	require.Equal(t, want, got)
	require.NotEqual(t, first.Slot, third.Slot, "nobody else gets it either")
}

// TestMemoryOfFilesIsBounded: a peer can only read the slot of a file, and the memory of files counts
// like that of parts, until the connection ends.
func TestMemoryOfFilesIsBounded(t *testing.T) {
	n := newNode(t, slotBytes)
	n.config.Patience = 20 * time.Millisecond
	n.start(0)
	p := n.filePeer()
	require.NoError(t, p.write("/f", data(1, 0), partBytes, false))
	_, f, err := p.ask(agentproto.Request{FetchFile: &fileproto.FetchFile{Path: "/f", Bytes: slotBytes}})
	require.NoError(t, err)
	_, err = unix.Mmap(int(f.Fd()), 0, partBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.Equal(t, unix.EACCES, err)
	require.Error(t, f.Truncate(0))

	_, _, err = n.filePeer().ask(agentproto.Request{FetchFile: &fileproto.FetchFile{Path: "/f", Bytes: 10}})
	require.True(t, hasKind(err, moraine.NoSpace), "all memory is in use, and no save gives any back: %v", err)
	require.ErrorContains(t, err, "readers of files and steps have 6291456 bytes")
	require.NotContains(t, err.Error(), "agent.Begin")
	for op, tooLong := range map[string]agentproto.Request{
		"agent.FetchFile: no space: 7340032 bytes of a read do not fit": {FetchFile: &fileproto.FetchFile{Path: "/f", Bytes: 7 << 20}},
		"agent.Create: no space: a buffer of 7340032 bytes for a file":  {Create: &fileproto.Create{Path: "/g", Bytes: 7 << 20}},
	} {
		_, _, err = n.filePeer().ask(tooLong)
		require.ErrorContains(t, err, op)
	}
	require.NoError(t, p.c.Close())
	require.Eventually(t, func() bool {
		_, _, err := n.filePeer().ask(agentproto.Request{FetchFile: &fileproto.FetchFile{Path: "/f", Bytes: slotBytes}})
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	for _, bad := range []agentproto.Request{
		{FetchFile: &fileproto.FetchFile{Path: "/f", Bytes: -1}},
		{FetchFile: &fileproto.FetchFile{Path: "/f", Offset: -1, Bytes: 1}},
		{Create: &fileproto.Create{Path: "/g"}},
		{Append: &fileproto.Append{Bytes: 1}},
		{Commit: &fileproto.Commit{}},
	} {
		_, _, err := n.filePeer().ask(bad)
		require.True(t, hasKind(err, moraine.InvalidArgument), "%+v: %v", bad, err)
	}
}

func hasKind(err error, kind moraine.Kind) bool { return moraine.KindOf(err) == kind && err != nil }
