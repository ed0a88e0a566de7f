package metadata_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

func (k *client) watch(dir, after uint64, wait time.Duration) *wire.WatchReply {
	k.c.t.Helper()
	resp, err := k.ask(&wire.MetaRequest{Op: &wire.MetaRequest_Watch{Watch: &wire.Watch{
		Directory: dir, After: after, Incarnation: 1, WaitMillis: uint32(wait.Milliseconds())}}})
	require.NoError(k.c.t, err)
	require.EqualValues(k.c.t, 1, resp.GetWatch().Incarnation)
	return resp.GetWatch()
}

// toldBy returns a watch's events as texts.
func toldBy(r *wire.WatchReply) (out []string) {
	for _, e := range r.Events {
		what := map[wire.WatchKind]string{wire.WatchKind_WATCH_CREATED: "created", wire.WatchKind_WATCH_REMOVED: "removed",
			wire.WatchKind_WATCH_RENAMED: "renamed", wire.WatchKind_WATCH_CHANGED: "changed"}[e.Kind]
		if e.OldPath != "" {
			what += " " + e.OldPath + " ->"
		}
		typ := map[wire.FileType]string{wire.FileType_FILE_TYPE_REGULAR: " (file)", wire.FileType_FILE_TYPE_DIRECTORY: " (directory)"}[e.Type]
		out = append(out, what+" "+e.Path+typ)
	}
	return out
}

func TestAWatchTellsWhatChangesBelowADirectory(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		w := c.open(peer(transport.RoleClient, "w"))
		dir := w.made(mkdir(root, "d")).Inode
		sub := w.made(mkdir(dir, "sub")).Inode
		out := w.made(mkdir(root, "out")).Inode
		first := w.watch(dir, 0, 0)
		require.True(t, first.Resync, "a watch begins with a look at the directory")
		at := first.Next

		file := w.made(create(sub, "f")).Inode
		w.made(create(out, "elsewhere"))
		w.do(&wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: file, Valid: 1, Mode: 0o600}}})
		rename := func(parent uint64, name string, newParent uint64, newName string) {
			_, err := w.do(&wire.MetaRequest{Op: &wire.MetaRequest_Rename{Rename: &wire.Rename{
				Parent: parent, Name: name, NewParent: newParent, NewName: newName}}})
			require.NoError(t, err)
		}
		rename(sub, "f", dir, "g")
		rename(dir, "g", out, "g")
		rename(out, "elsewhere", sub, "e")
		_, err := w.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: sub, Name: "e"}}})
		require.NoError(t, err)
		r := w.watch(dir, at, 0)
		require.False(t, r.Resync)
		require.Equal(t, []string{"created sub/f (file)", "renamed sub/f -> g (file)", "removed g", "created sub/e", "removed sub/e"},
			toldBy(r), "the change of f's mode is not told: it is not below any more")
		require.Empty(t, w.watch(dir, r.Next, 0).Events)

		// It waits for a change, and reports it once nobody can see the former state.
		h := c.cacher("h")
		h.walk("d/sub/n")
		var late *wire.WatchReply
		waiting := inBackground(func() error { late = w.watch(dir, r.Next, 20*time.Second); return nil })
		requireWaits(t, waiting, "a watch")
		another := c.open(peer(transport.RoleClient, "x"))
		created := another.later(create(sub, "n"))
		requireWaits(t, waiting, "a watch of a change that is being recalled")
		h.recalled(1)
		requireAnswered(t, created, "the change")
		requireAnswered(t, waiting, "the watch")
		require.Equal(t, []string{"created sub/n (file)"}, toldBy(late))
		_, err = another.do(&wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: late.Events[0].Inode, Valid: 1, Mode: 0o600}}})
		require.NoError(t, err)
		require.Equal(t, []string{"changed sub/n (file)"}, toldBy(w.watch(dir, late.Next, 0)))

		_, err = w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_Watch{Watch: &wire.Watch{Directory: file, After: 1}}})
		require.Error(t, err, "a file is not watched")
	})
}

func TestAWatchThatCannotBeCompleteSaysSo(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		w := c.open(peer(transport.RoleClient, "w"))
		dir := w.made(mkdir(root, "d")).Inode
		at := w.watch(dir, 0, 0).Next
		w.made(create(dir, "before"))
		c.elect("m2") // which did not apply the earlier entries
		for i := range 3 {
			w.made(create(dir, fmt.Sprint(i)))
		}
		synctest.Wait()
		r := w.watch(dir, at, 0)
		require.True(t, r.Resync)
		w.made(mkdir(dir, "x"))
		require.Equal(t, []string{"created x (directory)"}, toldBy(w.watch(dir, r.Next, 0)))
	})
}

// A directory moved from elsewhere brings no events with it: its names were not below the watched
// directory, and may have been hidden from the watcher.
func TestAWatchTellsNothingOfBefore(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		w := c.open(peer(transport.RoleClient, "w"))
		dir, other := w.made(mkdir(root, "d")).Inode, w.made(mkdir(root, "other")).Inode
		sub := w.made(mkdir(other, "sub")).Inode
		w.made(create(dir, "x"))
		rename := func(parent uint64, name string, newParent uint64, newName string) {
			_, err := w.do(&wire.MetaRequest{Op: &wire.MetaRequest_Rename{Rename: &wire.Rename{
				Parent: parent, Name: name, NewParent: newParent, NewName: newName}}})
			require.NoError(t, err)
		}
		p := peer(transport.RoleClient, "h")
		p.Scope = "/d"
		in := c.open(p)
		at := in.watch(dir, 0, 0).Next
		w.made(create(sub, "sekrit"))
		rename(sub, "sekrit", sub, "sekrit2")
		rename(sub, "sekrit2", dir, "y")
		rename(dir, "x", sub, "sekrit3")
		_, err := w.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: sub, Name: "sekrit3"}}})
		require.NoError(t, err)
		rename(other, "sub", dir, "sub")
		w.made(create(sub, "z"))
		require.Equal(t, []string{"created y (file)", "removed x", "created sub (directory)", "created sub/z (file)"}, toldBy(in.watch(dir, at, 0)))
	})
}
