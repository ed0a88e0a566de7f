package metadata_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

func queueMove(kind wire.JobKind, inodes ...uint64) *wire.MetaRequest {
	return &wire.MetaRequest{Op: &wire.MetaRequest_QueueMove{QueueMove: &wire.QueueMove{Kind: kind, Inodes: inodes}}}
}

func setPolicy(dir uint64, p *wire.Policy) *wire.MetaRequest {
	return &wire.MetaRequest{Op: &wire.MetaRequest_SetPolicy{SetPolicy: &wire.SetPolicy{Inode: dir, Policy: p}}}
}

// leaseMoves requests any job as the mover of a node, with a bucket or none.
func (n *node) leaseMoves(bucket string, wait time.Duration) []*wire.Job {
	n.c.t.Helper()
	resp, err := n.ask(&wire.MetaRequest{Op: &wire.MetaRequest_LeaseJobs{LeaseJobs: &wire.LeaseJobs{
		Max: 1, WaitMillis: uint64(wait.Milliseconds()), Bucket: bucket, Prefix: "p"}}})
	require.NoError(n.c.t, err)
	return resp.GetJobs().Jobs
}

// A queued move wakes a waiting mover with a bucket; one without a bucket gets none. Only the
// holder's reports count.
func TestMoveIsLeasedToAMoverWithABucket(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(3)
		k := c.open(peer(transport.RoleClient, "c1"))
		k.write("f", nil)
		resp, err := k.ask(lookup("f"))
		require.NoError(t, err)
		f := resp.GetEntry().Attr

		var jobs []*wire.Job
		done := make(chan struct{})
		go func() { jobs = nodes[0].leaseMoves("b", 20*time.Second); close(done) }()
		synctest.Wait()
		resp, err = k.do(queueMove(wire.JobKind_JOB_KIND_FLUSH, f.Inode))
		require.NoError(t, err)
		queued := resp.GetJobs().Jobs
		require.Len(t, queued, 1)
		<-done
		require.Len(t, jobs, 1)
		job := jobs[0]
		require.Equal(t, queued[0].Id, job.Id)
		require.Equal(t, "p/f", job.Move.Key)
		require.Equal(t, "f", job.Move.Path)
		require.Empty(t, nodes[1].leaseMoves("b", 0))

		begin := &wire.MetaRequest{Op: &wire.MetaRequest_BeginObject{BeginObject: &wire.BeginObject{Job: job.Id, LeaseEpoch: job.LeaseEpoch,
			Intent: &wire.ObjectIntent{Kind: wire.IntentKind_INTENT_KIND_UPLOAD, Bucket: "b", Key: job.Move.Key, Generation: f.Generation}}}}
		_, err = nodes[1].ask(begin)
		require.ErrorIs(t, err, moraine.PermissionDenied)
		_, err = nodes[0].ask(begin)
		require.NoError(t, err)
		c.pass(16*time.Second, nodes...)
		require.Empty(t, nodes[2].leaseMoves("", 0), "a mover without a bucket")
		second := nodes[1].leaseMoves("b", 5*time.Second)
		require.Len(t, second, 1)
		require.Equal(t, wire.IntentKind_INTENT_KIND_UPLOAD, second[0].Move.Intent.Kind)
		_, err = nodes[0].ask(begin)
		require.ErrorIs(t, err, moraine.Fenced)

		resp, err = k.ask(&wire.MetaRequest{Op: &wire.MetaRequest_GetTier{GetTier: &wire.GetTier{}}})
		require.NoError(t, err)
		require.Equal(t, uint64(1), resp.GetTier().QueuedFlushes)
		require.Equal(t, uint64(1), resp.GetTier().Intents)
	})
}

// A client may move and set policies in its scope; a read-only one may not. A chunkserver queues
// moves without a session.
func TestWhoMayMove(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(3)
		admin := c.open(peer(transport.RoleAdmin, "a1"))
		admin.write("out", nil)
		resp, err := admin.do(mkdir(root, "team"))
		require.NoError(t, err)
		team := resp.GetEntry().Attr.Inode
		resp, err = admin.ask(lookup("out"))
		require.NoError(t, err)
		out := resp.GetEntry().Attr.Inode

		confined := peer(transport.RoleClient, "c1")
		confined.Scope = "/team"
		k := c.open(confined)
		_, err = k.do(queueMove(wire.JobKind_JOB_KIND_FLUSH, out))
		require.ErrorIs(t, err, moraine.NotFound)
		_, err = k.do(setPolicy(root, &wire.Policy{Flush: wire.FlushPolicy_FLUSH_POLICY_NEVER}))
		require.ErrorIs(t, err, moraine.NotFound)
		_, err = k.do(setPolicy(team, &wire.Policy{Flush: wire.FlushPolicy_FLUSH_POLICY_ON_COMMIT}))
		require.NoError(t, err)

		reader := peer(transport.RoleClient, "c2")
		reader.ReadOnly = true
		r := c.open(reader)
		_, err = r.do(queueMove(wire.JobKind_JOB_KIND_FLUSH, out))
		require.ErrorIs(t, err, moraine.ReadOnly)
		_, err = r.ask(&wire.MetaRequest{Op: &wire.MetaRequest_GetPolicy{GetPolicy: &wire.GetPolicy{Inode: team}}})
		require.NoError(t, err)

		// A chunkserver has files staged that are read from the bucket. It could read what it
		// flushed.
		for _, kind := range []wire.JobKind{wire.JobKind_JOB_KIND_FLUSH, wire.JobKind_JOB_KIND_EVICT} {
			_, err = nodes[0].ask(queueMove(kind, out))
			require.ErrorIs(t, err, moraine.PermissionDenied)
		}
		_, err = nodes[0].ask(queueMove(wire.JobKind_JOB_KIND_STAGE, out))
		require.NoError(t, err)
	})
}

// The leader lists what is below a directory, and new stripes follow the policy there.
func TestTreeAndSchemeOfADirectory(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(7)
		k := c.open(peer(transport.RoleClient, "c1"))
		for _, name := range []string{"a", "b", "c"} {
			k.write(name, nil)
		}
		resp, err := k.do(queueMove(wire.JobKind_JOB_KIND_FLUSH, root))
		require.NoError(t, err)
		c.pass(5*time.Second, nodes...)
		resp, err = k.ask(&wire.MetaRequest{Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{Id: resp.GetJobs().Jobs[0].Id}}})
		require.NoError(t, err)
		tree := resp.GetJobs().Jobs[0]
		require.Equal(t, wire.JobState_JOB_STATE_RUNNING, tree.State)
		require.Equal(t, uint64(3), tree.Total)

		_, err = k.do(setPolicy(root, &wire.Policy{Scheme: &wire.Scheme{K: 1, M: 1}}))
		require.NoError(t, err)
		g, err := k.grant(1, nil)
		require.NoError(t, err)
		require.Equal(t, uint32(1), g.Scheme.M)
		require.Len(t, g.Placements[0].Devices, 2)
		g, err = k.grant(1, &wire.Scheme{K: 4, M: 2})
		require.NoError(t, err)
		require.Equal(t, uint32(4), g.Scheme.K, "the writer asked for it")
	})
}
