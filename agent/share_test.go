package agent_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/agent"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
	"github.com/morainefs/moraine/transport/wire"
)

// saveReplica saves a part with the tensor "same", which all ranks have, and the rank's own.
func (n *node) saveReplica(run *ckpt.Run, step uint64, rank uint32) {
	n.t.Helper()
	part, err := run.Begin(n.t.Context(), step, ckpt.BeginOptions{Bytes: 3 * partBytes})
	require.NoError(n.t, err)
	for name, of := range map[string]uint32{"same": 99, fmt.Sprintf("w%d", rank): rank} {
		require.NoError(n.t, part.AddTensor(n.t.Context(), ckpt.Tensor{Name: name, DType: safetensors.U8, Shape: []int64{partBytes}, Data: data(step, of)}))
	}
	require.NoError(n.t, part.AddBlob(n.t.Context(), "rng", fmt.Appendf(nil, "state of rank %d", rank)))
	require.NoError(n.t, part.Seal(n.t.Context()))
}

// key names a step of a run.
func key(run *ckpt.Run, step uint64) client.StepKey {
	return client.StepKey{Run: run.ID(), Attempt: run.Attempt(), Step: step}
}

// requireReplica compares the tensor that all ranks have, and returns how often it is stored.
func (n *node) requireReplica(run *ckpt.Run, step uint64) int {
	n.t.Helper()
	k, err := run.Resolve(n.t.Context(), ckpt.ResolveOptions{Step: step, Exact: true})
	require.NoError(n.t, err)
	defer k.Close()
	got, err := k.ReadTensor(n.t.Context(), "same")
	require.NoError(n.t, err)
	require.Equal(n.t, data(step, 99), got)
	_, err = k.Verify(n.t.Context())
	require.NoError(n.t, err)
	same, err := k.Tensor(n.t.Context(), "same")
	require.NoError(n.t, err)
	return len(same.Slices)
}

// TestReplicasOfANodeAreStoredOnce: what several ranks of a node save with the same name, place and
// bytes is written to the cluster once, and a rank of another node writes it again. Each reader gets
// all of it.
func TestReplicasOfANodeAreStoredOnce(t *testing.T) {
	n := newNode(t, 20*slotBytes)
	n.metrics = agent.NewMetrics(nil)
	n.start(time.Minute)
	c, err := n.client(t.Context())
	require.NoError(t, err)
	elsewhere, err := ckpt.OpenRun(t.Context(), c.Client, runPath, ckpt.RunOptions{Launch: ckpt.Launch{Name: "one"}, Rank: 3, World: 4})
	require.NoError(t, err)
	var ranks []*trainer
	for rank := range uint32(3) {
		ranks = append(ranks, n.trainer("one", rank, 4))
	}
	for rank, tr := range ranks {
		n.saveReplica(tr.run, 1, uint32(rank))
	}
	n.saveReplica(elsewhere, 1, 3)
	n.requireStep(1, 4)
	require.Equal(t, 2, n.requireReplica(ranks[0].run, 1), "one on this node, one elsewhere")
	written := count(t, n.metrics.FlushedBytes)
	require.Greater(t, written, 4.0*partBytes)
	require.Less(t, written, 4.3*partBytes)
	require.NoError(t, elsewhere.Close(t.Context()))
	require.NoError(t, c.Close())
}

// TestTheNextAgentKeepsWhatRanksShare: one rank's part is in the cluster and leaves a tensor to another
// rank, whose part is not, when the agent ends. The next agent does not leave the tensor to the first.
func TestTheNextAgentKeepsWhatRanksShare(t *testing.T) {
	n := newNode(t, 12*slotBytes)
	n.gate(func(s *wire.SealPart) bool { return s.Rank == 0 })
	n.start(0)
	zero, one := n.trainer("one", 0, 2), n.trainer("one", 1, 2)
	n.saveReplica(zero.run, 1, 0)
	n.eventually(func() bool { return n.written(1) > 2*partBytes })
	n.saveReplica(one.run, 1, 1)
	n.eventually(func() bool {
		info, err := ckpt.GetStep(t.Context(), one.c.Client, key(one.run, 1))
		return err == nil && info.Sealed == 1
	})
	zero.die()
	one.die()
	require.ErrorIs(t, n.stop(), moraine.Incomplete)
	n.wrap = nil
	n.start(time.Minute)
	n.requireStep(1, 2)
	c, err := n.client(t.Context())
	require.NoError(t, err)
	reader, err := ckpt.OpenRun(t.Context(), c.Client, runPath, ckpt.RunOptions{ReadOnly: true})
	require.NoError(t, err)
	require.Equal(t, 1, n.requireReplica(reader, 1))
	require.NoError(t, reader.Close(t.Context()))
	require.NoError(t, c.Close())
}
