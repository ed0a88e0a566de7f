package metadata_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// write makes a file of one stripe in the root and returns its stripe.
func (k *client) write(name string, scheme *wire.Scheme) *wire.Stripe {
	k.c.t.Helper()
	g, err := k.grant(1, scheme)
	require.NoError(k.c.t, err)
	return k.commit(name, g.Placements[0])
}

// commit makes a file of one stripe with a placement.
func (k *client) commit(name string, p *wire.Placement) *wire.Stripe {
	k.c.t.Helper()
	return k.commitAt(name, p, func(*wire.ChunkState) {})
}

// commitAt is commit with each chunk changed by change.
func (k *client) commitAt(name string, p *wire.Placement, change func(*wire.ChunkState)) *wire.Stripe {
	k.c.t.Helper()
	resp, err := k.do(&wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{
		Parent: root, Name: name, Type: wire.FileType_FILE_TYPE_REGULAR, Mode: 0o644, Exclusive: true}}})
	require.NoError(k.c.t, err)
	s := &wire.Stripe{Id: p.Stripe, Scheme: p.Scheme, Version: 1, Length: 1 << 20}
	for i, d := range p.Devices {
		s.Chunks = append(s.Chunks, &wire.ChunkState{Device: d, Crc: uint32(i), Level: uint32(moraine.NVMe)})
		change(s.Chunks[i])
	}
	_, err = k.do(&wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: &wire.Commit{
		Inode: resp.GetEntry().Attr.Inode, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Level: s.Chunks[0].Level, Final: true,
		Stripes: []*wire.Stripe{s}, Extents: []*wire.Extent{{Length: s.Length, Stripe: s.Id}}}}})
	require.NoError(k.c.t, err)
	return s
}

func (k *client) remove(name string) {
	k.c.t.Helper()
	_, err := k.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: root, Name: name}}})
	require.NoError(k.c.t, err)
}

// stripeOf returns the present stripe of a file in the root.
func (k *client) stripeOf(name string) *wire.Stripe {
	k.c.t.Helper()
	resp, err := k.ask(lookup(name))
	require.NoError(k.c.t, err)
	resp, err = k.ask(&wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: resp.GetEntry().Attr.Inode}}})
	require.NoError(k.c.t, err)
	require.Len(k.c.t, resp.GetExtents().Stripes, 1)
	return resp.GetExtents().Stripes[0]
}

// lease requests one repair as the mover of a node.
func (n *node) lease(wait time.Duration) []*wire.Job {
	n.c.t.Helper()
	resp, err := n.c.do(peer(transport.RoleChunkserver, n.id), &wire.MetaRequest{Op: &wire.MetaRequest_LeaseJobs{LeaseJobs: &wire.LeaseJobs{
		Kinds: []wire.JobKind{wire.JobKind_JOB_KIND_REPAIR}, Max: 1, WaitMillis: uint64(wait.Milliseconds())}}})
	require.NoError(n.c.t, err)
	return resp.GetJobs().Jobs
}

func (n *node) ask(req *wire.MetaRequest) (*wire.MetaResponse, error) {
	return n.c.do(peer(transport.RoleChunkserver, n.id), req)
}

func finish(j *wire.Job) *wire.MetaRequest {
	return &wire.MetaRequest{Op: &wire.MetaRequest_FinishJob{FinishJob: &wire.FinishJob{Id: j.Id, LeaseEpoch: j.LeaseEpoch}}}
}

func badChunk(s *wire.Stripe, index int) *wire.MetaRequest {
	return &wire.MetaRequest{Op: &wire.MetaRequest_ReportBadChunks{ReportBadChunks: &wire.ReportBadChunks{Chunks: []*wire.BadChunk{{
		Stripe: s.Id, Index: uint32(index), Device: s.Chunks[index].Device, Version: s.Version, Kind: uint32(moraine.Corrupt)}}}}}
}

// verified sends a report of bad chunks that fsck verified.
func (c *cluster) verified(req *wire.MetaRequest) (*wire.MetaResponse, error) {
	return c.do(peer(transport.RoleAdmin, "fsck"), req)
}

func TestRepairOfABadChunk(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(7)
		k := c.open(peer(transport.RoleClient, "c1"))
		s := k.write("f", nil)
		c.pass(2*time.Second, nodes...)
		require.Empty(t, nodes[0].lease(0), "nothing is to be repaired")

		// A waiting mover is woken as soon as there is a job.
		began := time.Now()
		var jobs []*wire.Job
		done := make(chan struct{})
		go func() { jobs = nodes[0].lease(20 * time.Second); close(done) }()
		synctest.Wait()
		_, err := k.c.verified(badChunk(s, 3))
		require.NoError(t, err)
		<-done
		require.Less(t, time.Since(began), time.Second)
		require.Len(t, jobs, 1)
		job := jobs[0]
		require.Len(t, job.Repairs, 1)
		task := job.Repairs[0]
		require.Equal(t, s.Id, task.Stripe.Id)
		require.Len(t, task.Intents, 1)
		intent := task.Intents[0]
		require.Equal(t, uint32(3), intent.Index)

		_, err = nodes[0].ask(&wire.MetaRequest{Op: &wire.MetaRequest_CommitRepair{CommitRepair: &wire.CommitRepair{
			Job: job.Id, LeaseEpoch: job.LeaseEpoch, Intents: task.Intents}}})
		require.NoError(t, err)
		_, err = nodes[0].ask(finish(job))
		require.NoError(t, err)
		now := k.stripeOf("f")
		require.Equal(t, intent.Device, now.Chunks[3].Device)
		require.Equal(t, intent.Version, now.Version)
		time.Sleep(3 * time.Second)
		require.Empty(t, nodes[0].lease(0))
	})
}

// One job wakes all waiting movers, and all but one come too late. That answer is the only one that
// their request's number will ever get. It must reach them soon, not at the end of their wait, so
// that they send a new request.
func TestMoverThatCameTooLateAsksAgain(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(7)
		k := c.open(peer(transport.RoleClient, "c1"))
		poll := func() *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_LeaseJobs{LeaseJobs: &wire.LeaseJobs{
				Kinds: []wire.JobKind{wire.JobKind_JOB_KIND_REPAIR}, Max: 1, WaitMillis: 25_000}}}
		}
		const movers = 3
		answers := make(chan int, movers)
		for i := range movers {
			mover := c.open(peer(transport.RoleChunkserver, nodes[i].id))
			go func() {
				for {
					resp, err := mover.do(poll())
					if n := len(resp.GetJobs().GetJobs()); err != nil || n > 0 {
						answers <- n
						return
					}
				}
			}()
		}
		for job := range movers {
			c.pass(time.Second, nodes...)
			_, err := k.c.verified(badChunk(k.write(fmt.Sprintf("f%d", job), nil), 0))
			require.NoError(t, err)
			c.pass(5*time.Second, nodes...)
			require.Len(t, answers, job+1, "job %d waits", job)
		}
		for range movers {
			require.Equal(t, 1, <-answers)
		}
	})
}

func TestJobIsTakenOver(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(7)
		k := c.open(peer(transport.RoleClient, "c1"))
		_, err := k.c.verified(badChunk(k.write("f", nil), 0))
		require.NoError(t, err)
		c.pass(2*time.Second, nodes...)
		first := nodes[0].lease(5 * time.Second)
		require.Len(t, first, 1)
		c.pass(10*time.Second, nodes...)
		require.Empty(t, nodes[1].lease(0), "the lease holds")
		_, err = nodes[0].ask(&wire.MetaRequest{Op: &wire.MetaRequest_RenewJob{RenewJob: &wire.RenewJob{Id: first[0].Id, LeaseEpoch: first[0].LeaseEpoch}}})
		require.NoError(t, err)
		c.pass(10*time.Second, nodes...)
		require.Empty(t, nodes[1].lease(0), "it was renewed")

		c.elect("m3")
		c.pass(10*time.Second, nodes...)
		second := nodes[1].lease(10 * time.Second)
		require.Len(t, second, 1)
		require.Equal(t, first[0].Id, second[0].Id)
		require.Greater(t, second[0].LeaseEpoch, first[0].LeaseEpoch)
		_, err = nodes[0].ask(finish(first[0]))
		require.ErrorIs(t, err, moraine.Fenced)
		_, err = nodes[0].ask(&wire.MetaRequest{Op: &wire.MetaRequest_CommitRepair{CommitRepair: &wire.CommitRepair{
			Job: first[0].Id, LeaseEpoch: first[0].LeaseEpoch, Intents: first[0].Repairs[0].Intents}}})
		require.ErrorIs(t, err, moraine.Fenced)
	})
}

func TestDegradedCommitIsSpreadWithoutGrace(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(6)
		k := c.open(peer(transport.RoleClient, "c1"))
		c.pass(5*time.Second, nodes[:5]...) // n6 is silent
		g, err := k.grant(1, nil)
		require.NoError(t, err)
		require.Equal(t, uint32(1), g.Placements[0].Protects)
		k.commit("f", g.Placements[0])
		c.pass(10*time.Second, nodes[:5]...)
		require.Empty(t, nodes[0].lease(0), "five hosts are no better than they were")
		require.NoError(t, k.renew())

		c.pass(2*time.Second, nodes...)
		jobs := nodes[0].lease(0)
		require.Len(t, jobs, 1)
		require.Len(t, jobs[0].Repairs[0].Intents, 1)
		require.Equal(t, nodes[5].devices[0].Id, jobs[0].Repairs[0].Intents[0].Device)
	})
}

func TestLostHostIsRebuilt(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(8)
		k := c.open(peer(transport.RoleClient, "c1"))
		p := &wire.Placement{Scheme: &wire.Scheme{K: 4, M: 2}, Devices: []uint32{1, 2, 3, 4, 5, 6}}
		g, err := k.grant(3, nil)
		require.NoError(t, err)
		for i, name := range []string{"a", "b", "c"} {
			p.Stripe = g.First + uint64(i)
			k.commit(name, p)
		}
		live := without(nodes, 2)
		for range 11 {
			c.pass(55*time.Second, live...)
			require.NoError(t, k.renew())
		}
		stripes := 0
		for _, n := range live {
			for _, job := range n.lease(0) {
				for _, task := range job.Repairs {
					stripes++
					require.Len(t, task.Intents, 1)
					require.Equal(t, uint32(2), task.Intents[0].Index)
					require.Contains(t, []uint32{7, 8}, task.Intents[0].Device)
				}
			}
		}
		require.Equal(t, 3, stripes)
		resp, err := k.ask(&wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
		require.NoError(t, err)
		require.Equal(t, uint64(3), resp.GetCluster().RepairRunning)
	})
}

func TestHolderMayAskForAnotherTarget(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(8)
		k := c.open(peer(transport.RoleClient, "c1"))
		s := k.write("f", nil)
		_, err := k.c.verified(badChunk(s, 1))
		require.NoError(t, err)
		job := nodes[0].lease(10 * time.Second)[0]
		resp, err := nodes[0].ask(&wire.MetaRequest{Op: &wire.MetaRequest_BeginRepair{BeginRepair: &wire.BeginRepair{
			Job: job.Id, LeaseEpoch: job.LeaseEpoch, Intents: []*wire.Intent{{Stripe: s.Id, Index: 1}}}}})
		require.NoError(t, err)
		require.Len(t, resp.GetBeginRepair().Intents, 1)
		other := resp.GetBeginRepair().Intents[0].Device
		require.NotZero(t, other)
		require.NotEqual(t, job.Repairs[0].Intents[0].Device, other)
	})
}

func TestLeaderRunsItsJobs(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		k := c.open(peer(transport.RoleClient, "c1"))
		resp, err := k.do(mkdir(root, "tree"))
		require.NoError(t, err)
		tree := resp.GetEntry().Attr.Inode
		for range 50 {
			_, err := k.do(mkdir(tree, time.Now().String()))
			require.NoError(t, err)
			time.Sleep(time.Nanosecond)
		}
		_, err = k.do(&wire.MetaRequest{Op: &wire.MetaRequest_RemoveTree{RemoveTree: &wire.RemoveTree{Parent: root, Name: "tree"}}})
		require.NoError(t, err)
		time.Sleep(5 * time.Second)
		resp, err = k.ask(&wire.MetaRequest{Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{}}})
		require.NoError(t, err)
		require.Empty(t, resp.GetJobs().Jobs, "the job has ended")
		_, err = k.ask(&wire.MetaRequest{Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: tree}}})
		require.ErrorIs(t, err, moraine.NotFound)
	})
}
