package client_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
)

// The namespace by inode: each call does what it says, with distinct errors for taken and
// missing names.
func TestNamespaceByInode(t *testing.T) {
	inCluster(t, 1, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		dir, err := cl.Inodes().Mkdir(c.ctx, cl.Root(), "d", client.NodeOptions{Mode: 0o700, UID: 7, GID: 8, Exclusive: true})
		require.NoError(t, err)
		d := dir.Inode()
		require.Equal(t, []uint32{0o700, 7, 8}, []uint32{dir.Mode(), dir.UID(), dir.GID()})
		f, err := cl.Inodes().Create(c.ctx, d, "f", client.NodeOptions{Exclusive: true})
		require.NoError(t, err)
		require.Zero(t, f.Mode(), "a mode of 0 is a mode")
		again, err := cl.Inodes().Create(c.ctx, d, "f", client.NodeOptions{Mode: 0o644})
		require.NoError(t, err)
		require.Equal(t, f.Inode(), again.Inode())
		_, err = cl.Inodes().Create(c.ctx, d, "f", client.NodeOptions{Exclusive: true})
		require.ErrorIs(t, err, moraine.Exists)
		l, err := cl.Inodes().Symlink(c.ctx, d, "l", "f", client.NodeOptions{UID: 7})
		require.NoError(t, err)
		require.Equal(t, "f", l.Target())
		require.EqualValues(t, 7, l.UID())

		a, err := cl.Inodes().SetAttr(c.ctx, f.Inode(), client.SetAttr{Mode: new(uint32(0o600)), Size: new(int64(10))})
		require.NoError(t, err)
		require.EqualValues(t, 10, a.Size())
		require.NoError(t, cl.Inodes().Rename(c.ctx, client.Entry{Parent: d, Name: "f"},
			client.Entry{Parent: cl.Root(), Name: "g"}, client.RenameOptions{NoReplace: true}))
		_, err = cl.Inodes().Lookup(c.ctx, d, "f")
		require.ErrorIs(t, err, moraine.NotFound)
		g, err := cl.Inodes().Lookup(c.ctx, cl.Root(), "g")
		require.NoError(t, err)
		require.Equal(t, f.Inode(), g.Inode())

		_, err = cl.Inodes().Remove(c.ctx, cl.Root(), "d", client.RemoveOptions{Directory: true})
		require.ErrorIs(t, err, moraine.NotEmpty)
		_, err = cl.Inodes().Remove(c.ctx, d, "l", client.RemoveOptions{})
		require.NoError(t, err)
		_, err = cl.Inodes().Remove(c.ctx, cl.Root(), "d", client.RemoveOptions{})
		require.ErrorIs(t, err, moraine.IsDirectory)
		gone, err := cl.Inodes().Remove(c.ctx, cl.Root(), "d", client.RemoveOptions{Directory: true})
		require.NoError(t, err)
		require.Equal(t, d, gone)
	})
}

// The calls of the object tier and of attributes send the right requests. The service's own
// tests cover the answers.
func TestRequestsOfWrappers(t *testing.T) {
	inCluster(t, 1, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		var mu sync.Mutex
		var asked []*wire.MetaRequest
		answer := &wire.MetaResponse{}
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			if req.GetRenewSession() != nil || req.GetLeases() != nil {
				return nil, nil
			}
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, req)
			return func(*wire.MetaResponse, error) (*wire.MetaResponse, error) { return answer, nil }, nil
		})
		xattrs := &wire.MetaResponse{Result: &wire.MetaResponse_Xattr{Xattr: &wire.XattrReply{Value: []byte("v"), Names: []string{"user.a"}}}}
		entry := &wire.MetaResponse{Result: &wire.MetaResponse_Entry{Entry: &wire.EntryReply{Attr: &wire.Attr{Inode: 5, Nlink: 2}}}}
		jobs := &wire.MetaResponse{Result: &wire.MetaResponse_Jobs{Jobs: &wire.JobsReply{Jobs: []*wire.Job{{Id: 3}}}}}
		tier := &wire.MetaResponse{Result: &wire.MetaResponse_Tier{Tier: &wire.TierReply{Objects: 4}}}
		policy := &wire.MetaResponse{Result: &wire.MetaResponse_Policy{Policy: &wire.PolicyReply{
			Effective: &wire.Policy{Flush: wire.FlushPolicy_FLUSH_POLICY_ON_COMMIT}}}}
		doneReply := &wire.MetaResponse{Result: &wire.MetaResponse_Done{Done: &wire.Done{}}}
		for name, s := range map[string]struct {
			answer   *wire.MetaResponse
			call     func() error
			want     []*wire.MetaRequest
			mutation bool
		}{
			"link": {entry, func() error {
				a, err := cl.Inodes().Link(c.ctx, 5, 1, "n")
				require.EqualValues(t, 2, a.Nlink())
				return err
			}, []*wire.MetaRequest{{Op: &wire.MetaRequest_Link{Link: &wire.Link{Inode: 5, Parent: 1, Name: "n"}}}}, true},
			"release": {doneReply, func() error { return cl.Inodes().Release(c.ctx, make([]moraine.InodeID, 300)...) },
				[]*wire.MetaRequest{
					{Op: &wire.MetaRequest_Release{Release: &wire.Release{Inodes: make([]uint64, 256)}}},
					{Op: &wire.MetaRequest_Release{Release: &wire.Release{Inodes: make([]uint64, 44)}}}}, true},
			"set xattr": {doneReply, func() error { return cl.Xattrs().Set(c.ctx, 5, "user.a", []byte("v"), client.XattrCreate) },
				[]*wire.MetaRequest{{Op: &wire.MetaRequest_SetXattr{SetXattr: &wire.SetXattr{
					Inode: 5, Name: "user.a", Value: []byte("v"), Create: true}}}}, true},
			"remove xattr": {doneReply, func() error { return cl.Xattrs().Remove(c.ctx, 5, "user.a") },
				[]*wire.MetaRequest{{Op: &wire.MetaRequest_SetXattr{SetXattr: &wire.SetXattr{
					Inode: 5, Name: "user.a", Remove: true}}}}, true},
			"get xattr": {xattrs, func() error {
				v, err := cl.Xattrs().Get(c.ctx, 5, "user.a")
				require.Equal(t, "v", string(v))
				return err
			}, []*wire.MetaRequest{{Op: &wire.MetaRequest_GetXattr{GetXattr: &wire.GetXattr{Inode: 5, Name: "user.a"}}}}, false},
			"list xattrs": {xattrs, func() error {
				names, err := cl.Xattrs().List(c.ctx, 5)
				require.Equal(t, []string{"user.a"}, names)
				return err
			}, []*wire.MetaRequest{{Op: &wire.MetaRequest_GetXattr{GetXattr: &wire.GetXattr{Inode: 5}}}}, false},
			"queue move": {jobs, func() error {
				js, err := cl.Jobs().Queue(c.ctx, client.JobFlush, 5, 6)
				require.Len(t, js, 1)
				return err
			}, []*wire.MetaRequest{{Op: &wire.MetaRequest_QueueMove{QueueMove: &wire.QueueMove{
				Kind: wire.JobKind_JOB_KIND_FLUSH, Inodes: []uint64{5, 6}}}}}, true},
			"job": {jobs, func() error {
				j, err := cl.Jobs().Get(c.ctx, 3)
				require.EqualValues(t, 3, j.ID)
				return err
			}, []*wire.MetaRequest{{Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{Id: 3, Ended: true}}}}, false},
			"jobs": {jobs, func() error {
				for j, err := range cl.Jobs().List(c.ctx, true) {
					require.NoError(t, err)
					require.EqualValues(t, 3, j.ID)
				}
				return nil
			}, []*wire.MetaRequest{{Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{Limit: 500, Ended: true}}}}, false},
			"cancel job": {doneReply, func() error { return cl.Jobs().Cancel(c.ctx, 3) },
				[]*wire.MetaRequest{{Op: &wire.MetaRequest_CancelJob{CancelJob: &wire.CancelJob{Id: 3}}}}, true},
			"set policy": {doneReply, func() error { return cl.Policies().Set(c.ctx, 5, client.Policy{Flush: client.FlushOnCommit}) },
				[]*wire.MetaRequest{{Op: &wire.MetaRequest_SetPolicy{SetPolicy: &wire.SetPolicy{
					Inode: 5, Policy: &wire.Policy{Flush: 2}}}}}, true},
			"get policy": {policy, func() error {
				p, err := cl.Policies().Get(c.ctx, 5)
				require.Equal(t, client.FlushOnCommit, p.Effective.Flush)
				return err
			}, []*wire.MetaRequest{{Op: &wire.MetaRequest_GetPolicy{GetPolicy: &wire.GetPolicy{Inode: 5}}}}, false},
			"tier": {tier, func() error {
				r, err := cl.Tier(c.ctx)
				require.EqualValues(t, 4, r.Objects)
				return err
			}, []*wire.MetaRequest{{Op: &wire.MetaRequest_GetTier{GetTier: &wire.GetTier{}}}}, false},
		} {
			mu.Lock()
			asked, answer = nil, s.answer
			mu.Unlock()
			require.NoError(t, s.call(), name)
			require.Len(t, asked, len(s.want), name)
			for i, req := range asked {
				require.Equal(t, s.mutation, req.Number != 0, name)
				require.True(t, proto.Equal(s.want[i], &wire.MetaRequest{Op: req.Op}), "%s: %v", name, req)
			}
		}
		c.OnMeta(nil)
	})
}
