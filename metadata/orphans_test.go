package metadata_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// opener opens a session that may have files open.
func (c *cluster) opener(node string, leases bool) *cacher {
	c.t.Helper()
	c.nonces++
	p := peer(transport.RoleClient, node)
	resp, err := c.do(p, &wire.MetaRequest{Op: &wire.MetaRequest_OpenSession{OpenSession: &wire.OpenSession{
		Nonce: append(make([]byte, 15), c.nonces), Leases: leases, Opens: true}}})
	require.NoError(c.t, err)
	return &cacher{client: &client{c: c, peer: p, session: resp.GetSession().Session, reply: resp.GetSession()}}
}

// passed renews the session, says up to which orphan it has looked, and returns the last one.
func (k *client) passed(upto uint64) uint64 {
	k.c.t.Helper()
	resp, err := k.ask(&wire.MetaRequest{Op: &wire.MetaRequest_RenewSession{RenewSession: &wire.RenewSession{Lingered: upto}}})
	require.NoError(k.c.t, err)
	return resp.GetSession().Lingered
}

// removed makes a file and removes it, and returns its inode.
func (k *client) removed(name string) uint64 {
	k.c.t.Helper()
	resp, err := k.do(&wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{
		Parent: root, Name: name, Type: wire.FileType_FILE_TYPE_REGULAR, Mode: 0o644}}})
	require.NoError(k.c.t, err)
	_, err = k.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: root, Name: name}}})
	require.NoError(k.c.t, err)
	return resp.GetEntry().GetAttr().GetInode()
}

// there reports whether the service has an inode, a few ticks later.
func (k *client) there(inode uint64) bool {
	time.Sleep(2 * time.Second)
	_, err := k.ask(&wire.MetaRequest{Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: inode}}})
	return err == nil
}

// TestOrphansLingerUntilAllSessionsHadTime: a removed file stays until each session that may have it
// open said that it has looked, also across a failover. Sessions that have no files open do not
// matter, and the end of a session is as good as its word.
func TestOrphansLingerUntilAllSessionsHadTime(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		plain := c.open(peer(transport.RoleClient, "c1"))
		require.False(t, plain.there(plain.removed("before")))
		a, b := c.opener("c2", false), c.opener("c3", false)
		file := plain.removed("file")
		require.True(t, plain.there(file))
		number := a.passed(0)
		require.Equal(t, number, b.passed(0))
		require.NotZero(t, number)
		a.passed(number)
		require.True(t, plain.there(file))
		c.elect("m2") // which does not know what a said
		b.passed(number)
		require.True(t, plain.there(file))
		a.passed(number)
		require.False(t, plain.there(file))

		file = plain.removed("file")
		a.passed(a.passed(number))
		require.True(t, plain.there(file))
		_, err := b.do(&wire.MetaRequest{Op: &wire.MetaRequest_CloseSession{CloseSession: &wire.CloseSession{}}})
		require.NoError(t, err)
		require.False(t, plain.there(file))

		late := c.opener("c4", false) // it has nothing open of what was removed before
		file = plain.removed("file")
		a.passed(a.passed(number))
		late.passed(a.passed(0))
		require.False(t, plain.there(file))
	})
}

// TestNoSessionHoldsRemovedFilesForEver: a client renews its session, and never says that it has
// looked. The space of removed files comes back all the same.
func TestNoSessionHoldsRemovedFilesForEver(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		a, plain := c.opener("c1", false), c.open(peer(transport.RoleClient, "c2"))
		file := plain.removed("file")
		wait := func(d time.Duration) {
			for ; d > 0; d -= 10 * time.Second {
				a.passed(0)
				require.NoError(t, plain.renew())
				time.Sleep(10 * time.Second)
			}
		}
		wait(100 * time.Second)
		require.True(t, plain.there(file))
		wait(60 * time.Second)
		require.False(t, plain.there(file))
	})
}

// TestOrphansAreNamedAfterTheirRecalls: a session that could still open a removed file by a name in its
// cache does not learn of its number.
func TestOrphansAreNamedAfterTheirRecalls(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		plain := c.open(peer(transport.RoleClient, "c2"))
		k := c.opener("c1", true)
		k.begin(0)
		known := k.passed(0)
		_, leases := k.walk("/")
		require.NotEmpty(t, leases)
		answered := plain.later(&wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{
			Parent: root, Name: "file", Type: wire.FileType_FILE_TYPE_REGULAR, Mode: 0o644}}})
		time.Sleep(100 * time.Millisecond)
		recalls := k.recalled(0)
		require.NotEmpty(t, recalls)
		last := recalls[len(recalls)-1].Number
		k.recalled(last)
		done, err := answered()
		require.True(t, done)
		require.NoError(t, err)

		answered = plain.later(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: root, Name: "file"}}})
		time.Sleep(100 * time.Millisecond)
		require.Equal(t, known, k.passed(0), "it has not carried out the recall")
		recalls = k.recalled(last)
		require.NotEmpty(t, recalls)
		k.recalled(recalls[len(recalls)-1].Number)
		require.Greater(t, k.passed(0), known)
		done, err = answered()
		require.True(t, done)
		require.NoError(t, err)
	})
}
