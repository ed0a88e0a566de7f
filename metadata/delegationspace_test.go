package metadata_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/metadatatest"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// While the metadata disks are nearly full, what a session has changed already is still applied. The
// leader recalls its directories, and delegates no other.
func TestNearlyFullDisksEndDelegations(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		o := c.owner("a")
		require.Equal(t, []string{"ok"}, o.send(o.file("old")))
		c.group.Fail(metadatatest.Faults{LowSpace: true})
		began := time.Now().UnixNano()
		req := batch(o.file("new"), &wire.BatchOp{Op: &wire.BatchOp_Remove{Remove: &wire.Remove{Parent: o.dir, Name: "old"}}})
		resp, err := o.do(req)
		require.NoError(t, err)
		require.Equal(t, []string{"ok", "ok"}, outcomes(resp.GetBatch()))
		require.GreaterOrEqual(t, resp.GetBatch().Now, began, "the answer says the time of the entry")
		time.Sleep(1100 * time.Millisecond)
		require.Equal(t, []uint64{o.dir}, o.wanted())
		o.end(o.dir)
		_, err = o.do(create(o.dir, "plain"))
		require.ErrorIs(t, err, moraine.NoSpace)
		_, err = o.do(&wire.MetaRequest{LeaseEpoch: o.epoch, Op: &wire.MetaRequest_Delegate{Delegate: &wire.Delegate{Inode: o.dir}}})
		require.ErrorIs(t, err, moraine.NoSpace)
		time.Sleep(2 * time.Second)
		require.Empty(t, o.wanted())
	})
}

// A quota and a trash wait for the delegations below the directory that gets them, and so does a
// tree that moves below a quota, or so deep that what is delegated in it had no room below it. So no change of a batch meets either unexpectedly.
func TestQuotasAndTrashesWaitForDelegationsBelow(t *testing.T) {
	quota := func(dir uint64) *wire.MetaRequest {
		return &wire.MetaRequest{Op: &wire.MetaRequest_SetQuota{SetQuota: &wire.SetQuota{Inode: dir, Inodes: 100}}}
	}
	moved := func(_, beside uint64) *wire.MetaRequest {
		return &wire.MetaRequest{Op: &wire.MetaRequest_Rename{Rename: &wire.Rename{Parent: root, Name: "top", NewParent: beside, NewName: "moved"}}}
	}
	for name, test := range map[string]struct {
		before, request func(top, beside uint64) *wire.MetaRequest
		deep            int  // beside is below so many others
		free            bool // the request waits for nothing
	}{
		"quota": {request: func(top, _ uint64) *wire.MetaRequest { return quota(top) }},
		"trash": {request: func(top, _ uint64) *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_SetPolicy{SetPolicy: &wire.SetPolicy{Inode: top, Policy: &wire.Policy{TrashMillis: 3_600_000}}}}
		}},
		"rename": {
			before:  func(_, beside uint64) *wire.MetaRequest { return quota(beside) },
			request: moved,
		},
		"deep rename":    {request: moved, deep: 253},
		"shallow rename": {request: moved, deep: 252, free: true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, nil, func(c *cluster) {
				o, admin := &owner{cacher: c.cacher("a")}, c.open(peer(transport.RoleAdmin, "admin"))
				top, beside := o.made(mkdir(root, "top")).Inode, o.made(mkdir(root, "beside")).Inode
				for range test.deep {
					beside = o.made(mkdir(beside, "d")).Inode
				}
				o.dir = o.made(mkdir(o.made(mkdir(top, "between")).Inode, "d")).Inode
				r := o.delegate(o.dir)
				require.True(t, r.Delegated, r.Why)
				o.next = r.First
				if test.before != nil {
					answered := admin.later(test.before(top, beside))
					requireWaits(t, answered, "a quota")
					o.end(o.dir)
					requireAnswered(t, answered, "a quota")
					time.Sleep(11 * time.Second)
					o.begin(0)
					require.True(t, o.delegate(o.dir).Delegated)
				}
				answered := admin.later(test.request(top, beside))
				if test.free {
					requireAnswered(t, answered, "the request")
					require.Empty(t, o.wanted())
					return
				}
				requireWaits(t, answered, "the request")
				require.Equal(t, []uint64{o.dir}, o.wanted())
				require.Equal(t, []string{"ok"}, o.send(o.file("f")))
				o.end(o.dir)
				requireAnswered(t, answered, "the request")
			})
		})
	}
}
