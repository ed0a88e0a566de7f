package agent_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/agent"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
)

// TestRanksOfANodeReadOnce: eight ranks of a node that all fetch a checkpoint of other nodes cause as
// many bytes to be read from the cluster as one of them, also where several replicas are stored.
func TestRanksOfANodeReadOnce(t *testing.T) {
	const size, world = 6 << 20, 8
	n := newNode(t, 128<<20)
	n.metrics = agent.NewMetrics(nil)
	n.start(0)
	want := make([]byte, size)
	for at := 0; at < size; at += copy(want[at:], data(1, 5)) {
	}
	for rank := range uint32(2) { // they save the same tensor
		c, err := n.client(t.Context())
		require.NoError(t, err)
		run, err := ckpt.OpenRun(t.Context(), c.Client, runPath, ckpt.RunOptions{Launch: ckpt.Launch{Name: "one"}, Rank: rank, World: 2})
		require.NoError(t, err)
		part, err := run.Begin(t.Context(), 1, ckpt.BeginOptions{})
		require.NoError(t, err)
		require.NoError(t, part.AddTensor(t.Context(), ckpt.Tensor{Name: "w0", DType: safetensors.U8, Shape: []int64{size}, Data: want}))
		require.NoError(t, part.Seal(t.Context()))
		defer func() {
			require.NoError(t, run.Close(t.Context()))
			require.NoError(t, c.Close())
		}()
		if rank == 1 {
			_, err := part.Wait(t.Context(), moraine.NVMe)
			require.NoError(t, err)
		}
	}
	var peers [world]*peer
	for rank := range peers {
		peers[rank] = n.stranger()
		require.NoError(t, peers[rank].ask(&agentproto.Request{Open: &agentproto.Open{Run: runPath, Rank: uint32(rank), World: world, ReadOnly: true}}))
		require.NoError(t, peers[rank].ask(&agentproto.Request{Resolve: &agentproto.Resolve{}}))
	}
	fetch := func(p *peer) {
		_, files, err := p.conn.Exchange(t.Context(), &agentproto.Request{Fetch: &agentproto.Fetch{Bytes: size, Slices: []agentproto.Slice{
			{Name: "w0", Offset: []int64{0}, Shape: []int64{size}, Bytes: size}}}})
		if err != nil || len(files) != 1 {
			t.Errorf("%d descriptors, %v", len(files), err)
			return
		}
		got := make([]byte, size)
		if _, err := files[0].ReadAt(got, 0); err != nil || string(got) != string(want) {
			t.Errorf("the bytes differ (%v)", err)
		}
		_ = files[0].Close()
	}
	var all sync.WaitGroup
	for _, p := range peers {
		all.Go(func() { fetch(p) })
	}
	all.Wait()
	require.Equal(t, float64(size), count(t, n.metrics.RestoredBytes.WithLabelValues("cluster")))
	require.Equal(t, float64((world-1)*size), count(t, n.metrics.RestoredBytes.WithLabelValues("node")))
}
