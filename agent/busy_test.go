package agent_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/agent"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/client/ckpt/busy"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// gate delays the seals of parts in the cluster until it is opened, for clients that come from now on
// and the parts that which selects. nil: all.
func (n *node) gate(which func(*wire.SealPart) bool) (open func()) {
	opened := make(chan struct{})
	n.wrap = func(d transport.Dialer) transport.Dialer {
		return incluster.Through(d, func(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
			if s := req.GetSealPart(); s != nil && (which == nil || which(s)) {
				select {
				case <-opened:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			return m.Do(ctx, req)
		})
	}
	open = sync.OnceFunc(func() { close(opened) })
	n.t.Cleanup(open)
	return open
}

// saveOver is save with busy.Supersede.
func (tr *trainer) saveOver(step uint64, rank uint32) *ckpt.Part {
	tr.n.t.Helper()
	part, err := tr.fill(step, rank, ckpt.BeginOptions{Busy: busy.Supersede})
	require.NoError(tr.n.t, err)
	require.NoError(tr.n.t, part.Seal(tr.n.t.Context()))
	return part
}

// TestANewerStepSupersedesOneThatIsNotWritten: with busy.Supersede a step that waits to be written is
// aborted for all ranks once each rank of the node has sealed a newer one. The step that is being
// written, and the newest one of each rank, are not.
func TestANewerStepSupersedesOneThatIsNotWritten(t *testing.T) {
	n := newNode(t, 12*slotBytes)
	open := n.gate(nil)
	n.start(time.Minute)
	ranks := []*trainer{n.trainer("one", 0, 2), n.trainer("one", 1, 2)}
	parts := map[uint64][]*ckpt.Part{}
	for _, step := range []uint64{1, 2} {
		for rank, tr := range ranks {
			parts[step] = append(parts[step], tr.saveOver(step, uint32(rank)))
			if step == 1 {
				n.eventually(func() bool { w, _, err := parts[1][rank].Progress(t.Context()); return err == nil && w > 0 })
			}
		}
	}
	parts[3] = append(parts[3], ranks[0].saveOver(3, 0))
	n.never(func() bool { return n.states()[2] != agentproto.Local }, "step 2 is what rank 1 has sealed last")
	parts[3] = append(parts[3], ranks[1].saveOver(3, 1))
	for rank, part := range parts[2] {
		_, err := part.Wait(t.Context(), moraine.NVMe)
		require.ErrorIs(t, err, moraine.Aborted, rank)
		require.ErrorContains(t, err, "superseded by step 3")
	}
	open()
	n.requireStep(1, 2)
	n.requireStep(3, 2)
	for rank, tr := range ranks {
		tr.saveOver(4, uint32(rank))
		step, err := tr.run.LastFailure()
		require.Equal(t, uint64(2), step)
		require.ErrorIs(t, err, moraine.Aborted)
	}
	n.requireStep(4, 2)
	require.NoError(t, n.stop())
}

// TestAStepThatARankWritesIsNotSuperseded: what one rank of the node writes, no other rank gives up,
// though its own part still waits.
func TestAStepThatARankWritesIsNotSuperseded(t *testing.T) {
	n := newNode(t, 12*slotBytes)
	open := n.gate(func(s *wire.SealPart) bool { return s.Rank == 1 && s.Key.Step == 1 || s.Key.Step == 2 })
	n.start(time.Minute)
	ranks := []*trainer{n.trainer("one", 0, 2), n.trainer("one", 1, 2)}
	for step := uint64(1); step <= 2; step++ {
		for rank, tr := range ranks {
			tr.saveOver(step, uint32(rank))
		}
		n.eventually(func() bool { return n.written(step) > partBytes }) // rank 0's part of it
	}
	for rank, tr := range ranks {
		tr.saveOver(3, uint32(rank))
	}
	n.never(func() bool { return n.states()[2] == agentproto.Failed })
	open()
	for step := uint64(1); step <= 3; step++ {
		n.requireStep(step, 2)
	}
	require.NoError(t, n.stop())
}

// TestNodesDoNotSupersedeEachOtherForEver: if a run has ranks on other nodes, some steps are never
// superseded, and the numbers of the steps decide which. A step that another node has written is not
// either.
func TestNodesDoNotSupersedeEachOtherForEver(t *testing.T) {
	n := newNode(t, 20*slotBytes)
	elsewhere, err := n.client(t.Context())
	require.NoError(t, err)
	open := n.gate(nil)
	n.start(0)
	tr := n.trainer("one", 0, 2)
	run, err := ckpt.OpenRun(t.Context(), elsewhere.Client, runPath, ckpt.RunOptions{Launch: ckpt.Launch{Name: "one"}, Rank: 1, World: 2})
	require.NoError(t, err)
	tr.saveOver(1, 0)
	n.eventually(func() bool { return n.states()[1] == agentproto.Local && n.written(1) > 0 })
	other, err := run.Begin(t.Context(), 2, ckpt.BeginOptions{})
	require.NoError(t, err)
	require.NoError(t, other.AddBlob(t.Context(), "rng", []byte("state")))
	require.NoError(t, other.Seal(t.Context()))
	<-other.Done()
	const last = 12
	kept := 0
	for step := uint64(2); step <= last; step++ {
		tr.saveOver(step, 0)
	}
	for step := uint64(2); step <= last; step++ {
		if step == 2 || step == last || agent.KeptStep(step) {
			kept++
			continue
		}
		n.eventually(func() bool { return n.states()[step] == agentproto.Failed })
	}
	require.Greater(t, kept, 2)
	require.Less(t, kept, last/2)
	for step := uint64(1); step <= last; step++ {
		if step <= 2 || step == last || agent.KeptStep(step) {
			require.Equal(t, agentproto.Local, n.states()[step], step)
		}
	}
	open()
	require.NoError(t, run.Close(t.Context()))
	require.NoError(t, elsewhere.Close())
}

// written returns how many bytes of a step's parts the cluster has been given.
func (n *node) written(step uint64) (sum int64) {
	n.t.Helper()
	reply, err := agentproto.Ask(n.t.Context(), n.socket(), &agentproto.Request{Status: &agentproto.Status{}})
	require.NoError(n.t, err)
	for _, p := range reply.Status.Parts {
		if p.Step == step {
			sum += p.Written
		}
	}
	return sum
}

// TestProgressOfASave: a trainer sees how many bytes of its part are written, and is woken when a
// level is reached.
func TestProgressOfASave(t *testing.T) {
	n := newNode(t, 3*slotBytes)
	open := n.gate(nil)
	n.start(time.Minute)
	tr := n.trainer("one", 0, 1)
	part, err := tr.fill(1, 0, ckpt.BeginOptions{})
	require.NoError(t, err)
	local, nvme := part.Reached(moraine.Local), part.Reached(moraine.NVMe)
	written, _, err := part.Progress(t.Context())
	require.NoError(t, err)
	require.Zero(t, written)
	require.NoError(t, part.Seal(t.Context()))
	<-local
	n.eventually(func() bool {
		written, total, err := part.Progress(t.Context())
		return err == nil && written == total && total > partBytes
	})
	require.Greater(t, n.written(1), int64(partBytes))
	select {
	case <-nvme:
		t.Fatal("the step is not committed yet")
	default:
	}
	open()
	<-nvme
	info, err := part.Wait(t.Context(), moraine.NVMe)
	require.NoError(t, err)
	require.Equal(t, ckpt.StepCommitted, info.State)
	_, err = agentproto.Ask(t.Context(), n.socket(), &agentproto.Request{Progress: &agentproto.Progress{Run: runPath, Attempt: 1, Step: 9}})
	require.ErrorIs(t, err, moraine.NotFound)
}
