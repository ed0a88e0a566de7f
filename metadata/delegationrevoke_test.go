package metadata_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// A session that does not end one delegation in time loses all of them, so that a request that meets many
// waits once, and it gets none for a while.
func TestARevocationTakesAllDirectoriesOfTheSession(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		o, other := c.owner("a"), c.open(peer(transport.RoleClient, "b"))
		at, path := o.dir, "d"
		for range 40 {
			mk := o.making(at, "sub", wire.FileType_FILE_TYPE_DIRECTORY)
			require.Equal(t, []string{"ok"}, o.send(mk))
			at, path = mk.Inode, path+"/sub"
		}
		answered := inBackground(func() error {
			_, err := other.ask(&wire.MetaRequest{Op: &wire.MetaRequest_Walk{Walk: &wire.Walk{Path: path}}})
			return err
		})
		time.Sleep(3900 * time.Millisecond)
		requireWaits(t, answered, "a walk while the session may still trust its standing")
		time.Sleep(200 * time.Millisecond)
		requireAnswered(t, answered, "a walk that met all directories")
		require.Equal(t, []string{"stale"}, o.send(o.making(at, "late", wire.FileType_FILE_TYPE_REGULAR)))
		require.NoError(t, o.renew())
		o.begin(0)
		beside := o.made(mkdir(root, "beside")).Inode
		require.Contains(t, o.delegate(beside).Why, "in time")
		for range 30 {
			time.Sleep(2500 * time.Millisecond)
			o.begin(0)
		}
		r := o.delegate(beside)
		require.True(t, r.Delegated, r.Why)
	})
}

// A request that meets the delegations of two sessions waits for both. Nothing is recalled of a session
// whose delegation has ended, and another session's recall of the same directory stays.
func TestRecallsOfTwoSessions(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		a, b, other := c.owner("a"), &owner{cacher: c.cacher("b")}, c.open(peer(transport.RoleClient, "x"))
		b.dir = b.made(mkdir(root, "e")).Inode
		r := b.delegate(b.dir)
		require.True(t, r.Delegated, r.Why)
		b.next = r.First
		require.Equal(t, []string{"ok"}, a.send(a.file("f")))
		answered := other.later(&wire.MetaRequest{Op: &wire.MetaRequest_Rename{Rename: &wire.Rename{Parent: a.dir, Name: "f", NewParent: b.dir, NewName: "f"}}})
		requireWaits(t, answered, "a rename")
		require.Equal(t, []uint64{a.dir}, a.wanted())
		require.Equal(t, []uint64{b.dir}, b.wanted())
		for i := range 3 { // neither ends the recall of the other's directory
			a.end(b.dir, b.dir+uint64(i))
			b.end(a.dir)
		}
		require.Equal(t, []uint64{a.dir}, a.wanted())
		require.Equal(t, []uint64{b.dir}, b.wanted())
		b.end(b.dir)
		require.Empty(t, b.wanted())
		requireWaits(t, answered, "a rename that waits for the other session")
		a.end(a.dir)
		requireAnswered(t, answered, "the rename")
	})
}
