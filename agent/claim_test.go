package agent_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/agent"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
)

const mib = 1 << 20

// beside returns another training node of n's cluster.
func (n *node) beside() *node {
	n.t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "moraine-agent-test-")
	require.NoError(n.t, err)
	n.t.Cleanup(func() { require.NoError(n.t, os.RemoveAll(dir)) })
	m := &node{t: n.t, c: n.c, dir: dir, arena: filepath.Join(dir, "arena"), memory: n.memory, clients: 1000}
	n.t.Cleanup(func() {
		if m.stop != nil {
			_ = m.stop() // a test that cares has stopped it
		}
	})
	return m
}

// twoNodes returns two training nodes of one cluster, with metrics.
func twoNodes(t *testing.T) (a, b *node) {
	t.Helper()
	a = newNode(t, 64*mib)
	b = a.beside()
	a.metrics, b.metrics = agent.NewMetrics(nil), agent.NewMetrics(nil)
	return a, b
}

// dieAll ends trainers, all at once.
func dieAll(trs ...*trainer) {
	var all sync.WaitGroup
	for _, tr := range trs {
		all.Go(tr.die)
	}
	all.Wait()
}

// bytesOf returns n bytes that follow from what.
func bytesOf(what string, n int) []byte {
	p := make([]byte, n)
	for at := 0; at < n; at += copy(p[at:], what) {
	}
	return p
}

// whole is a tensor that a rank has all of, slice a part of one along its only dimension.
func whole(name string, data []byte) ckpt.Tensor {
	return ckpt.Tensor{Name: name, DType: safetensors.U8, Shape: []int64{int64(len(data))}, Data: data}
}

func slice(name string, global, from, to int64, data []byte) ckpt.Tensor {
	return ckpt.Tensor{Name: name, DType: safetensors.U8, Global: []int64{global}, Offset: []int64{from}, Shape: []int64{to - from}, Data: data[from:to]}
}

// add saves a part with some tensors.
func (tr *trainer) add(step uint64, tensors ...ckpt.Tensor) *ckpt.Part {
	t := tr.n.t
	t.Helper()
	part, err := tr.run.Begin(t.Context(), step, ckpt.BeginOptions{Bytes: 8 * mib})
	require.NoError(t, err)
	for _, x := range tensors {
		require.NoError(t, part.AddTensor(t.Context(), x))
	}
	require.NoError(t, part.Seal(t.Context()))
	return part
}

// requireTensors waits until a step is committed, compares its tensors, and fails unless each slice of
// them is stored as often as wanted.
func (n *node) requireTensors(step uint64, copies int, want map[string][]byte) {
	n.t.Helper()
	c, err := n.client(n.t.Context())
	require.NoError(n.t, err)
	defer c.Close()
	run, err := ckpt.OpenRun(n.t.Context(), c.Client, runPath, ckpt.RunOptions{ReadOnly: true})
	require.NoError(n.t, err)
	defer run.Close(n.t.Context())
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
	defer cancel()
	_, err = run.WaitStep(ctx, step, moraine.NVMe)
	require.NoError(n.t, err)
	k, err := run.Resolve(ctx, ckpt.ResolveOptions{Step: step, Exact: true})
	require.NoError(n.t, err)
	defer k.Close()
	_, err = k.Verify(ctx)
	require.NoError(n.t, err)
	for name, data := range want {
		got, err := k.ReadTensor(ctx, name)
		require.NoError(n.t, err)
		require.True(n.t, string(data) == string(got), "%s of step %d has other bytes", name, step)
		info, err := k.Tensor(ctx, name)
		require.NoError(n.t, err)
		stored := map[string]int{}
		for _, s := range info.Slices {
			stored[fmt.Sprint(s.Offset, s.Shape)]++
		}
		for place, times := range stored {
			require.Equal(n.t, copies, times, "%s of %s", place, name)
		}
	}
}

// TestRanksOfSeveralNodesStoreOnce: what ranks of two nodes have in common is written to the cluster
// once: all of a replica (DDP), the shards of replicas (HSDP), and the whole tensors of ranks that
// have shards of others (FSDP). Different bytes are stored by each, so the check of the step finds them. A
// restart on the node that has left its tensors to the other one reads them from its own memory.
func TestRanksOfSeveralNodesStoreOnce(t *testing.T) {
	a, b := twoNodes(t)
	a.start(time.Minute)
	b.start(time.Minute)
	const world = 4
	ranks := []*trainer{a.trainer("one", 0, world), a.trainer("one", 1, world), b.trainer("one", 2, world), b.trainer("one", 3, world)}
	w, norm := bytesOf("the weights of the model ", 4*mib), bytesOf("what is whole in each rank ", 5*mib/4)
	requireWritten := func(before float64, bytes int) {
		t.Helper()
		got := count(t, a.metrics.FlushedBytes) + count(t, b.metrics.FlushedBytes) - before
		require.Greater(t, got, float64(bytes))
		require.Less(t, got, float64(bytes)+mib/2)
	}
	for step, of := range []func(rank int) []ckpt.Tensor{
		func(int) []ckpt.Tensor { return []ckpt.Tensor{whole("model.w", w), whole("norm", norm)} },
		func(rank int) []ckpt.Tensor {
			from := int64(rank%2) * 2 * mib
			return []ckpt.Tensor{slice("model.w", 4*mib, from, from+2*mib, w), whole("norm", norm)}
		},
		func(rank int) []ckpt.Tensor {
			from := int64(rank) * mib
			return []ckpt.Tensor{slice("model.w", 4*mib, from, from+mib, w), whole("norm", norm)}
		},
		func(int) []ckpt.Tensor { return []ckpt.Tensor{whole("model.w", w), whole("norm", norm)} },
	} {
		before := count(t, a.metrics.FlushedBytes) + count(t, b.metrics.FlushedBytes)
		for rank, tr := range ranks {
			tr.add(uint64(step+1), of(rank)...)
		}
		a.requireTensors(uint64(step+1), 1, map[string][]byte{"model.w": w, "norm": norm})
		requireWritten(before, 4*mib+5*mib/4)
	}
	require.Zero(t, count(t, a.metrics.ClaimsFailed)+count(t, b.metrics.ClaimsFailed))
	require.Greater(t, count(t, b.metrics.SharedBytes)+count(t, a.metrics.SharedBytes), 10.0*mib)

	for _, n := range []*node{a, b} {
		n.eventually(func() bool { return n.states()[4] == agentproto.Committed })
	}
	for rank, tr := range ranks {
		if rank > 0 {
			tr.add(5, whole("model.w", w))
		} else {
			tr.add(5, whole("model.w", bytesOf("other weights ", 4*mib)))
		}
	}
	_, err := ranks[3].run.WaitStep(t.Context(), 5, moraine.NVMe)
	require.ErrorIs(t, err, moraine.Aborted)
	require.ErrorContains(t, err, "with different bytes")
	dieAll(ranks...)
	next := []*trainer{a.trainer("two", 0, 2), b.trainer("two", 1, 2)}
	defer dieAll(next...)
	for rank, tr := range next {
		k, err := tr.run.Resolve(t.Context(), ckpt.ResolveOptions{Step: 4, Exact: true})
		require.NoError(t, err)
		got, err := k.ReadTensor(t.Context(), "model.w")
		require.NoError(t, err)
		require.True(t, string(w) == string(got))
		require.Zero(t, k.BytesRead(), "rank %d: nothing came from the cluster", rank)
		require.Equal(t, int64(4*mib), k.NodeBytes())
		require.NoError(t, k.Close())
	}
}
