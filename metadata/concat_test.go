package metadata_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/transport/memnet"
	"github.com/morainefs/moraine/transport/wire"
)

// The next leader continues a concatenation where the previous one stopped. A retry of its request
// under the same number, through any leader, names the same job.
func TestConcatOutlivesLeaders(t *testing.T) {
	c := newRaftCluster(t, 3)
	c.leader()
	c.net.SetFaults("c0", "*", memnet.Faults{LoseReply: 0.2})
	k := c.caller("c0")
	k.open()
	ok := func(req *wire.MetaRequest) *wire.MetaResponse {
		t.Helper()
		resp, err := k.mutate(req)
		require.NoError(t, err)
		return resp
	}
	parts := ok(mkdir(root, "parts")).GetEntry().Attr.Inode
	part := ok(&wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{Parent: parts, Name: "part", Type: wire.FileType_FILE_TYPE_REGULAR}}}).GetEntry().Attr.Inode
	ok(&wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: part, Valid: uint32(wire.SetAttrField_SET_ATTR_SIZE), Size: 100}}})
	into := ok(&wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{Type: wire.FileType_FILE_TYPE_REGULAR, Unlinked: true}}}).GetEntry().Attr.Inode
	op := &wire.Concat{Inode: into, Consume: parts, Link: &wire.LinkTarget{Parent: root, Name: "whole"}}
	for range 10_000 {
		op.Ranges = append(op.Ranges, &wire.CloneRange{Inode: part})
	}
	begun := &wire.MetaRequest{Op: &wire.MetaRequest_Concat{Concat: op}}
	job := ok(begun).GetJobs().Jobs[0]
	state := func() *wire.Job {
		resp, err := k.do(&wire.MetaRequest{Session: k.session, Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{Id: job.Id, Ended: true}}})
		require.NoError(t, err)
		return resp.GetJobs().Jobs[0]
	}
	kills := 0
	var last uint64
	for end := time.Now().Add(60 * time.Second); ; {
		j := state()
		require.GreaterOrEqual(t, j.Done, last, "what was done is done")
		last = j.Done
		if j.State != wire.JobState_JOB_STATE_PENDING {
			require.Equal(t, wire.JobState_JOB_STATE_DONE, j.State, j.Error)
			break
		}
		require.True(t, time.Now().Before(end), "it does not end")
		if kills < 3 && j.Done > uint64(kills)*2000 {
			kills++
			name := c.leader()
			c.stop(name)
			c.leader()
			c.start(name)
			resp, err := k.do(begun)
			require.NoError(t, err)
			require.Equal(t, job.Id, resp.GetJobs().Jobs[0].Id)
		}
	}
	t.Logf("%d leaders were killed", kills)
	require.NotZero(t, kills, "it was over before a leader died: the test shows nothing")
	lookup := func(name string) (*wire.MetaResponse, error) {
		return k.do(&wire.MetaRequest{Session: k.session, Op: &wire.MetaRequest_Lookup{Lookup: &wire.Lookup{Parent: root, Name: name}}})
	}
	whole, err := lookup("whole")
	require.NoError(t, err)
	require.EqualValues(t, into, whole.GetEntry().Attr.Inode)
	require.EqualValues(t, 1_000_000, whole.GetEntry().Attr.Size)
	_, err = lookup("parts")
	require.Error(t, err)
}
