package metadata_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// fresh requests a fresh cluster status while the nodes send heartbeats.
func (c *cluster) fresh(nodes ...*node) map[string]*wire.Host {
	c.t.Helper()
	answer := make(chan *wire.ClusterReply, 1)
	go func() {
		resp, err := c.do(peer(transport.RoleClient, "c1"), &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{Fresh: true}}})
		if err != nil {
			c.t.Error(err)
		}
		answer <- resp.GetCluster()
	}()
	synctest.Wait()
	for range 20 {
		select {
		case got := <-answer:
			hosts := map[string]*wire.Host{}
			for _, h := range got.GetTopology().GetHosts() {
				hosts[h.Id] = h
			}
			return hosts
		default:
			c.pass(time.Second, nodes...)
		}
	}
	c.t.Fatal("no answer")
	return nil
}

// report reports that a node's first device is empty.
func (h *node) report() {
	h.c.t.Helper()
	_, err := h.ask(&wire.MetaRequest{Op: &wire.MetaRequest_ReportChunks{ReportChunks: &wire.ReportChunks{
		Device: h.devices[0].Id, PassStarted: h.beat().Applied}}})
	require.NoError(h.c.t, err)
}

// A leader does not show a host as up before the host's first heartbeat.
func TestANewLeaderKnowsNoHost(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(3)
		c.pass(2*time.Second, nodes...)
		for _, h := range c.cluster().Topology.Hosts {
			require.True(t, h.Alive && h.Seen, h.Id)
		}
		c.elect("m2")
		for _, h := range c.topology().Hosts {
			require.True(t, h.Alive, "writes go on")
			require.False(t, h.Seen, "nobody has spoken to this leader")
		}
		nodes[0].beat()
		nodes[1].devices[0].Epoch++ // it booted and has not registered
		nodes[1].beat()
		c.pass(time.Second)
		got := map[string]bool{}
		for _, h := range c.topology().Hosts {
			got[h.Id] = h.Seen
		}
		require.Equal(t, map[string]bool{"n1": true, "n2": false, "n3": false}, got)
	})
}

// A fresh status does not show as up a host that died before the request, even if it was last seen
// a moment ago.
func TestAFreshStatusHearsEveryHost(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(3)
		c.pass(2*time.Second, nodes...)
		for _, n := range nodes {
			n.beat()
		}
		// n3 dies now.
		hosts := c.fresh(nodes[:2]...)
		require.True(t, hosts["n1"].Seen && hosts["n2"].Seen)
		require.False(t, hosts["n3"].Alive && hosts["n3"].Seen, "it is down, or not known to be up")
		require.False(t, hosts["n3"].Alive, "the answer waits until that is known")
		for _, h := range c.fresh(nodes...) {
			require.True(t, h.Alive && h.Seen, h.Id)
		}
	})
}

// The missing chunks of a device are unknown until a full report that began after its boot; the
// leader requests it.
func TestDevicesAreReportedAfterEachBoot(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		n := c.fleet(1)[0]
		known := func() bool { return c.device(n.devices[0].Id).Reported }
		require.False(t, known())
		require.Equal(t, []uint32{n.devices[0].Id}, n.beat().Report)
		n.report()
		synctest.Wait()
		require.True(t, known())
		require.Empty(t, n.beat().Report)
		c.elect("m2")
		c.pass(time.Second, n)
		require.True(t, known(), "it is in the state: a new leader needs no other report")
		before := n.beat().Applied
		n.again()
		require.False(t, known(), "it booted")
		_, err := n.ask(&wire.MetaRequest{Op: &wire.MetaRequest_ReportChunks{ReportChunks: &wire.ReportChunks{Device: n.devices[0].Id, PassStarted: before}}})
		require.NoError(t, err)
		synctest.Wait()
		require.False(t, known(), "that report began before the boot")
		n.report()
		synctest.Wait()
		require.True(t, known())
	})
}

// More chunks may be missing on a device than one slice of its report queues. The same pass finds
// the rest, and is not complete before.
func TestAllThatIsMissingIsMetByOnePass(t *testing.T) {
	t.Cleanup(metadata.SetMaxMissing(3))
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(7)
		k := c.open(peer(transport.RoleClient, "c1"))
		g, err := k.grant(8, nil)
		require.NoError(t, err)
		for i, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
			k.commit(name, &wire.Placement{Stripe: g.First + uint64(i), Scheme: &wire.Scheme{K: 4, M: 2}, Devices: []uint32{1, 2, 3, 4, 5, 6}})
		}
		n := nodes[0]
		started, from, missing := n.beat().Applied, uint64(0), uint64(0)
		for slices := 1; ; slices++ {
			require.False(t, c.device(n.devices[0].Id).Reported)
			resp, err := n.ask(&wire.MetaRequest{Op: &wire.MetaRequest_ReportChunks{ReportChunks: &wire.ReportChunks{
				Device: n.devices[0].Id, PassStarted: started, From: from}}})
			require.NoError(t, err)
			missing += resp.GetReportChunks().Missing
			if from = resp.GetReportChunks().To; from == 0 {
				break
			}
			require.Less(t, slices, 8)
		}
		synctest.Wait()
		require.EqualValues(t, 8, missing)
		require.EqualValues(t, 8, c.cluster().RepairQueued)
		require.True(t, c.device(n.devices[0].Id).Reported)
	})
}

// A slice whose judgement takes long is cut, and the same pass judges the rest: its sender gives up
// an attempt after some seconds, and would repeat it for ever.
func TestALongReportIsJudgedInParts(t *testing.T) {
	t.Cleanup(metadata.SetJudgeFor(-1)) // the time of each part is over at once
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(7)
		k := c.open(peer(transport.RoleClient, "c1"))
		const stripes = 200
		g, err := k.grant(stripes, nil)
		require.NoError(t, err)
		for i := range uint64(stripes) {
			k.commit(fmt.Sprint(i), &wire.Placement{Stripe: g.First + i, Scheme: &wire.Scheme{K: 4, M: 2}, Devices: []uint32{1, 2, 3, 4, 5, 6}})
		}
		n := nodes[0]
		started, from, missing, slices := n.beat().Applied, uint64(0), uint64(0), 0
		for {
			req := &wire.ReportChunks{Device: n.devices[0].Id, PassStarted: started, From: from}
			for i := range uint64(stripes) {
				if i != 10 && i != 150 && g.First+i >= from {
					req.Chunks = append(req.Chunks, &wire.ChunkReport{Stripe: g.First + i, Version: 1, Length: 1 << 20})
				}
			}
			resp, err := n.ask(&wire.MetaRequest{Op: &wire.MetaRequest_ReportChunks{ReportChunks: req}})
			require.NoError(t, err)
			slices++
			missing += resp.GetReportChunks().Missing
			if from = resp.GetReportChunks().To; from == 0 {
				break
			}
		}
		synctest.Wait()
		require.Greater(t, slices, 2)
		require.EqualValues(t, 2, missing, "each is counted once")
		require.True(t, c.device(n.devices[0].Id).Reported, "the pass is complete")
	})
}

// A device that is out and does not report has no usage: it is not assumed to be as full as the
// others.
func TestADeviceThatIsOutIsNotTakenForFull(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(6)
		for _, n := range nodes {
			n.devices[0].Used = 1 << 39
		}
		c.pass(2*time.Second, nodes...)
		_, err := c.open(peer(transport.RoleAdmin, "ops")).do(&wire.MetaRequest{Op: &wire.MetaRequest_SetDeviceState{
			SetDeviceState: &wire.SetDeviceState{Device: nodes[5].devices[0].Id, State: out, Reason: "by hand"}}})
		require.NoError(t, err)
		c.elect("m2")
		c.pass(6*time.Second, nodes[:5]...)
		d := c.device(nodes[5].devices[0].Id)
		require.Equal(t, out, d.State)
		require.Zero(t, d.Used)
		require.False(t, d.Measured)
		require.EqualValues(t, 1<<39, c.device(nodes[0].devices[0].Id).Used)
	})
}
