package agent_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/client/ckpt/agentproto/fileproto"
)

// TestNamesThroughTheAgent makes, clones, renames and removes files and directories. A clone has the
// bytes of its source at that moment, a rename changes no version, and names that are taken stay.
func TestNamesThroughTheAgent(t *testing.T) {
	n := newNode(t, 4*slotBytes)
	n.start(0)
	p := n.filePeer()
	ok := func(req agentproto.Request) *agentproto.Reply {
		t.Helper()
		reply, _, err := p.ask(req)
		require.NoError(t, err)
		return reply
	}
	fails := func(kind moraine.Kind, req agentproto.Request) {
		t.Helper()
		_, _, err := p.ask(req)
		require.True(t, hasKind(err, kind), "%v", err)
	}
	stat := func(path string) agentproto.Request {
		return agentproto.Request{Stat: &fileproto.Stat{Path: fileproto.Name(path)}}
	}
	mkdir := func(m fileproto.Mkdir) agentproto.Request { return agentproto.Request{Mkdir: &m} }
	remove := func(r fileproto.Remove) agentproto.Request { return agentproto.Request{Remove: &r} }
	rename := func(r fileproto.Rename) agentproto.Request { return agentproto.Request{Rename: &r} }
	clone := func(c fileproto.Clone) agentproto.Request { return agentproto.Request{Clone: &c} }

	fails(moraine.NotFound, mkdir(fileproto.Mkdir{Path: "/a/b"}))
	require.Equal(t, fileproto.Directory, ok(mkdir(fileproto.Mkdir{Path: "/a/b", Parents: true, Exclusive: true})).Mkdir.Type)
	require.EqualValues(t, "b", ok(mkdir(fileproto.Mkdir{Path: "/a/b"})).Mkdir.Name)
	ok(mkdir(fileproto.Mkdir{Path: "/"}))
	fails(moraine.Exists, mkdir(fileproto.Mkdir{Path: "/", Exclusive: true}))
	c, err := n.client(t.Context())
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Symlink(t.Context(), "b", "/a/link")
	require.NoError(t, err)
	ok(mkdir(fileproto.Mkdir{Path: "/a/link"}))
	ok(mkdir(fileproto.Mkdir{Path: "/a/link/c", Parents: true}))
	require.Equal(t, fileproto.Directory, ok(stat("/a/b/c")).Stat.Type)
	fails(moraine.Exists, mkdir(fileproto.Mkdir{Path: "/a/b", Exclusive: true}))

	want := data(1, 0)
	require.NoError(t, p.write("/a/f", want, partBytes, false))
	fails(moraine.Exists, mkdir(fileproto.Mkdir{Path: "/a/f"}))
	fails(moraine.NotDirectory, mkdir(fileproto.Mkdir{Path: "/a/f/g"}))
	e := ok(clone(fileproto.Clone{From: "/a/f", To: "/a/new/g", Parents: true})).Clone
	require.Equal(t, ok(stat("/a/new/g")).Stat, e)
	require.NoError(t, p.write("/a/f", data(2, 0), partBytes, false))
	got, _ := n.filePeer().read("/a/new/g", 0, int64(len(want)), false)
	require.Equal(t, want, got)
	fails(moraine.Exists, clone(fileproto.Clone{From: "/a/f", To: "/a/new/g", Exclusive: true}))
	fails(moraine.IsDirectory, clone(fileproto.Clone{From: "/a/b", To: "/a/c"}))
	fails(moraine.NotFound, clone(fileproto.Clone{From: "/a/nothing", To: "/a/c"}))

	fails(moraine.Exists, rename(fileproto.Rename{From: "/a/new/g", To: "/a/f", Exclusive: true}))
	ok(rename(fileproto.Rename{From: "/a/new/g", To: "/a/f"}))
	require.Equal(t, e.Version, ok(stat("/a/f")).Stat.Version)
	fails(moraine.NotFound, stat("/a/new/g"))
	fails(moraine.NotFound, rename(fileproto.Rename{From: "/a/new/g", To: "/a/h"}))

	fails(moraine.NotEmpty, remove(fileproto.Remove{Path: "/a"}))
	ok(remove(fileproto.Remove{Path: "/a/new"}))
	ok(remove(fileproto.Remove{Path: "/a/f"}))
	fails(moraine.NotFound, remove(fileproto.Remove{Path: "/a/f"}))
	ok(remove(fileproto.Remove{Path: "/a", Tree: true}))
	fails(moraine.NotFound, remove(fileproto.Remove{Path: "/a", Tree: true}))
	fails(moraine.NotFound, stat("/a"))
}

// TestWhatAPeerMakesIsItsOwn: files, directories, also those above them, and clones belong to the user who
// asked for them, not to the agent's.
func TestWhatAPeerMakesIsItsOwn(t *testing.T) {
	if socket := os.Getenv("MORAINE_TEST_AGENT_SOCKET"); socket != "" {
		for _, req := range []agentproto.Request{
			{Mkdir: &fileproto.Mkdir{Path: "/a/b", Parents: true}},
			{Clone: &fileproto.Clone{From: "/f", To: "/c/d/f", Parents: true}},
		} {
			_, err := agentproto.Ask(t.Context(), socket, &req)
			require.NoError(t, err)
		}
		return
	}
	requireRoot(t)
	n := newNode(t, 3*slotBytes)
	n.config.Users = []uint32{otherUser}
	n.start(0)
	require.NoError(t, n.filePeer().write("/f", []byte("bytes"), partBytes, false))
	n.asAnotherUser()
	c, err := n.client(t.Context())
	require.NoError(t, err)
	defer c.Close()
	for _, path := range []string{"/a", "/a/b", "/c", "/c/d", "/c/d/f"} {
		attr, err := c.Stat(t.Context(), path)
		require.NoError(t, err)
		require.Equal(t, [2]uint32{otherUser, otherUser}, [2]uint32{attr.UID(), attr.GID()}, path)
	}
}

// TestNamesOfAnyBytesThroughTheAgent: JSON has names that are not UTF-8 without loss, in both
// directions, and a listing goes on after one.
func TestNamesOfAnyBytesThroughTheAgent(t *testing.T) {
	n := newNode(t, 4*slotBytes)
	n.start(0)
	p := n.filePeer()
	want := []string{"a\xfe", "caf\xe9", "\xed\xb3\xbf", "\xff"}
	for _, name := range want {
		require.NoError(t, p.write("/d\xff/"+name, []byte(name), 100, true))
	}
	var got []string
	for after := ""; ; after = got[len(got)-1] {
		reply, _, err := p.ask(agentproto.Request{List: &fileproto.List{Path: "/d\xff", After: fileproto.Name(after), Limit: 1}})
		require.NoError(t, err)
		if len(reply.List.Entries) == 0 {
			break
		}
		got = append(got, string(reply.List.Entries[0].Name))
	}
	require.Equal(t, want, got)
	reply, _, err := p.ask(agentproto.Request{Rename: &fileproto.Rename{From: "/d\xff/\xff", To: "/d\xff/\xfe"}})
	require.NoError(t, err)
	require.NotNil(t, reply.Rename)
	data, _ := p.read("/d\xff/\xfe", 0, 10, false)
	require.Equal(t, "\xff", string(data))
}
