package metadata_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// evict flushes and evicts a file as the mover of n, with the bucket b, and returns its object.
func (n *node) evict(k *client, name string) *wire.Object {
	n.c.t.Helper()
	t := n.c.t
	attr := func() *wire.Attr {
		resp, err := k.ask(lookup(name))
		require.NoError(t, err)
		return resp.GetEntry().Attr
	}
	must := func(req *wire.MetaRequest) {
		t.Helper()
		_, err := n.ask(req)
		require.NoError(t, err)
	}
	queued := func(kind wire.JobKind) *wire.Job {
		t.Helper()
		_, err := k.do(queueMove(kind, attr().Inode))
		require.NoError(t, err)
		jobs := n.leaseMoves("b", 0)
		require.Len(t, jobs, 1)
		return jobs[0]
	}
	f, j := attr(), queued(wire.JobKind_JOB_KIND_FLUSH)
	in := &wire.ObjectIntent{Kind: wire.IntentKind_INTENT_KIND_UPLOAD, Bucket: "b", Key: j.Move.Key, Generation: f.Generation}
	for _, change := range []func(){func() {}, func() { in.UploadId = "u" }, func() { in.Completing, in.Etag, in.Size, in.Crc = true, "e", f.Size, 7 }} {
		change()
		must(&wire.MetaRequest{Op: &wire.MetaRequest_BeginObject{BeginObject: &wire.BeginObject{Job: j.Id, LeaseEpoch: j.LeaseEpoch, Intent: in}}})
	}
	must(&wire.MetaRequest{Op: &wire.MetaRequest_CommitFlush{CommitFlush: &wire.CommitFlush{Job: j.Id, LeaseEpoch: j.LeaseEpoch, Final: true, Sums: []uint32{7},
		Object: &wire.Object{Bucket: "b", Key: j.Move.Key, Etag: "e", Size: f.Size, Crc: 7, Generation: f.Generation, Piece: 16 << 20, Verified: wire.Verified_VERIFIED_STORE_CRC}}}})
	must(finish(j))
	j = queued(wire.JobKind_JOB_KIND_EVICT)
	must(&wire.MetaRequest{Op: &wire.MetaRequest_CommitEvict{CommitEvict: &wire.CommitEvict{Job: j.Id, LeaseEpoch: j.LeaseEpoch, Generation: f.Generation, Object: j.Move.Object.Id}}})
	must(finish(j))
	return j.Move.Object
}

// serves makes hosts with a bucket that answers.
func (c *cluster) serves(n int) (nodes []*node) {
	c.t.Helper()
	for i := range n {
		h := &node{c: c, id: string(rune('p' + i)), bucket: "s3://b/p"}
		h.devices = []*wire.Device{{Uuid: []byte("object device 0" + string(rune('0'+i))), Capacity: 1 << 40}}
		h.says = func(hb *wire.Heartbeat) { hb.Bucket = &wire.BucketHealth{Tried: true, SinceMillis: 100} }
		h.again()
		nodes = append(nodes, h)
	}
	return nodes
}

// compares makes a host compare the objects in each heartbeat's reply, and report the result of
// says.
func (n *node) compares(says func(o *wire.ObjectToCheck) wire.ObjectState) (asked int) {
	n.c.t.Helper()
	var checks []*wire.ObjectCheck
	for _, w := range n.beat().CheckObjects {
		checks = append(checks, &wire.ObjectCheck{Object: w.Object, State: says(w), Error: "the store says so"})
	}
	if len(checks) > 0 {
		_, err := n.ask(&wire.MetaRequest{Op: &wire.MetaRequest_ReportObjects{ReportObjects: &wire.ReportObjects{Checks: checks}}})
		require.NoError(n.c.t, err)
	}
	return len(checks)
}

func (c *cluster) checkObjects(start bool) *wire.CheckObjectsReply {
	c.t.Helper()
	resp, err := c.do(peer(transport.RoleAdmin, "a1"), &wire.MetaRequest{Op: &wire.MetaRequest_CheckObjects{CheckObjects: &wire.CheckObjects{Start: start}}})
	require.NoError(c.t, err)
	return resp.GetCheckObjects()
}

// The leader makes hosts compare all objects, on request and periodically. Objects that differ from
// their records are counted and rechecked every few seconds; those that nobody could compare are
// unknown. Only a host of the bucket may report.
func TestObjectsAreCompared(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		plain := c.fleet(3)
		nodes := c.serves(2)
		k := c.open(peer(transport.RoleClient, "c1"))
		var objects []*wire.Object
		for _, name := range []string{"f", "g", "h"} {
			k.write(name, nil)
			objects = append(objects, nodes[0].evict(k, name))
		}
		gone := map[uint64]wire.ObjectState{}
		says := func(o *wire.ObjectToCheck) wire.ObjectState {
			if s, ok := gone[o.Object.Id]; ok {
				return s
			}
			return wire.ObjectState_OBJECT_STATE_GOOD
		}
		round := func(seconds int) (asked int) {
			for range seconds {
				for _, n := range plain {
					require.Empty(t, n.beat().CheckObjects, "it has no bucket")
				}
				for _, n := range nodes {
					asked += n.compares(says)
				}
				time.Sleep(time.Second)
			}
			return asked
		}
		began := c.checkObjects(true)
		require.False(t, began.Done)
		require.True(t, began.Full)
		require.Equal(t, 3, round(3))
		r := c.checkObjects(false)
		require.True(t, r.Done)
		require.Equal(t, began.Check, r.Check)
		require.EqualValues(t, []uint64{3, 3, 3, 0, 0}, []uint64{r.Total, r.Checked, r.Good, r.Bad, r.Unknown})

		report := &wire.MetaRequest{Op: &wire.MetaRequest_ReportObjects{ReportObjects: &wire.ReportObjects{Checks: []*wire.ObjectCheck{
			{Object: objects[0], State: wire.ObjectState_OBJECT_STATE_MISSING}}}}}
		_, err := plain[0].ask(report)
		require.ErrorIs(t, err, moraine.PermissionDenied)
		_, err = k.ask(report)
		require.ErrorIs(t, err, moraine.PermissionDenied)
		require.Zero(t, c.cluster().LostObjects)

		gone[objects[0].Id] = wire.ObjectState_OBJECT_STATE_MISSING
		gone[objects[1].Id] = wire.ObjectState_OBJECT_STATE_UNKNOWN
		c.checkObjects(true)
		round(3)
		r = c.checkObjects(false)
		require.True(t, r.Done)
		require.EqualValues(t, []uint64{2, 1, 1, 1}, []uint64{r.Checked, r.Good, r.Bad, r.Unknown})
		require.Equal(t, "the store says so", r.Error)
		require.EqualValues(t, 1, c.cluster().LostObjects)
		require.NotZero(t, round(10), "it is compared again")
		c.elect("m2")
		require.EqualValues(t, 1, c.cluster().LostObjects, "it is in the state")
		delete(gone, objects[0].Id)
		delete(gone, objects[1].Id)
		for _, n := range append(plain, nodes...) {
			n.again()
		}
		round(8)
		require.Zero(t, c.cluster().LostObjects)

		// A new leader compares all without a request, and again a day later.
		require.GreaterOrEqual(t, round(70), 3)
		require.True(t, c.checkObjects(false).Done)
		require.EqualValues(t, 3, c.checkObjects(false).Good)

		// Hosts that do not answer, and a bucket that answers no host.
		for _, n := range nodes {
			n.says = func(hb *wire.Heartbeat) { hb.Bucket = &wire.BucketHealth{Tried: true, Error: "timed out"} }
		}
		c.checkObjects(true)
		require.Zero(t, round(20))
		require.False(t, c.checkObjects(false).Done)
		require.Zero(t, round(15))
		r = c.checkObjects(false)
		require.True(t, r.Done)
		require.EqualValues(t, []uint64{0, 3}, []uint64{r.Checked, r.Unknown})
		require.Contains(t, r.Error, "bucket b")
	})
}

// The status shows a bucket that has objects and no host that serves it and is up, and not as good.
func TestABucketWithObjectsThatNoHostServes(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		plain := c.fleet(3)
		nodes := c.serves(1)
		k := c.open(peer(transport.RoleClient, "c1"))
		k.write("f", nil)
		nodes[0].evict(k, "f")
		c.pass(2*time.Second, append(plain, nodes...)...)
		list := c.cluster().Buckets
		require.Len(t, list, 1)
		require.Equal(t, "s3://b/p", list[0].Bucket)
		require.EqualValues(t, 1, list[0].Answered)
		c.pass(30*time.Second, plain...)
		list = c.cluster().Buckets
		require.Len(t, list, 1)
		require.Equal(t, "s3://b", list[0].Bucket)
		require.Zero(t, list[0].Hosts)
		resp, err := c.do(peer(transport.RoleClient, "c2"), &wire.MetaRequest{Op: &wire.MetaRequest_GetTier{GetTier: &wire.GetTier{}}})
		require.NoError(t, err)
		require.Len(t, resp.GetTier().Health, 1)
		require.Zero(t, resp.GetTier().Health[0].Hosts)

		// The same holds while the host is up and serves another bucket.
		nodes[0].bucket = "s3://other"
		nodes[0].again()
		c.pass(2*time.Second, append(plain, nodes...)...)
		list = c.cluster().Buckets
		require.Len(t, list, 2)
		require.Equal(t, "s3://b", list[0].Bucket)
		require.Zero(t, list[0].Hosts)
	})
}
