package agent_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt/adopt"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

// TestAForgottenPart: an agent that no longer knows a part asks the cluster how its step ended. A part
// that the cluster does not have either is not found.
func TestAForgottenPart(t *testing.T) {
	n := newNode(t, 64<<20)
	n.start(0)
	a, b := n.peer(runPath, "one", 2), n.stranger()
	require.NoError(t, b.ask(&agentproto.Request{Open: &agentproto.Open{Run: runPath, Rank: 1, World: 2, Launch: "one"}}))
	for step := uint64(1); step <= 2; step++ {
		for _, p := range []*peer{a, b} {
			require.NoError(t, p.begin(step, 100))
			require.NoError(t, p.seal(step, 100))
		}
		require.NoError(t, n.wait(step))
	}
	require.NoError(t, a.begin(3, 100))
	require.NoError(t, a.ask(&agentproto.Request{Abort: &agentproto.Abort{Step: 3, Reason: "the loss is not a number"}}))
	require.NoError(t, n.stop())
	n.start(0)
	require.Equal(t, map[uint64]string{2: agentproto.Committed}, n.states())

	wait := func(step uint64, level string) (*agentproto.WaitReply, error) {
		reply, err := agentproto.Ask(t.Context(), n.socket(), &agentproto.Request{Wait: &agentproto.Wait{Run: runPath, Attempt: 1, Step: step, Level: level, TimeoutMillis: 30_000}})
		if err != nil {
			return nil, err
		}
		return reply.Wait, nil
	}
	progress := func(step uint64) (*agentproto.ProgressReply, error) {
		reply, err := agentproto.Ask(t.Context(), n.socket(), &agentproto.Request{Progress: &agentproto.Progress{Run: runPath, Attempt: 1, Step: step}})
		if err != nil {
			return nil, err
		}
		return reply.Progress, nil
	}
	for _, level := range []string{agentproto.Written, "memory", "nvme"} {
		reply, err := wait(1, level)
		require.NoError(t, err, level)
		require.Equal(t, "nvme", reply.Level)
		require.Equal(t, "attempt-1/step-1", reply.Path)
	}
	got, err := progress(1)
	require.NoError(t, err)
	require.Equal(t, agentproto.ProgressReply{State: agentproto.Committed}, *got)
	_, err = wait(1, agentproto.Local)
	require.ErrorIs(t, err, moraine.NotFound, "only the agent that has it can say so")

	_, err = wait(3, "nvme")
	require.ErrorIs(t, err, moraine.Aborted)
	require.ErrorContains(t, err, "the loss is not a number")
	got, err = progress(3)
	require.NoError(t, err)
	require.Equal(t, agentproto.Failed, got.State)

	for step, level := range map[uint64]string{4: "nvme", 5: agentproto.Written} {
		_, err = wait(step, level)
		require.ErrorIs(t, err, moraine.NotFound, "nobody has begun it")
	}
	_, err = progress(4)
	require.ErrorIs(t, err, moraine.NotFound)

	// Rank 1 has begun step 6, and rank 0 has not sealed it.
	b = n.stranger()
	require.NoError(t, b.ask(&agentproto.Request{Open: &agentproto.Open{Run: runPath, Rank: 1, World: 2, Launch: "one"}}))
	require.NoError(t, b.begin(6, 100))
	_, err = wait(6, "nvme")
	require.ErrorIs(t, err, moraine.NotFound)
}

// TestAnAdoptedStepHasNoTensors: a trainer that asks for the tensors of a step that was adopted from files gets an
// error, and not an empty step.
func TestAnAdoptedStepHasNoTensors(t *testing.T) {
	n := newNode(t, 64<<20)
	n.start(time.Minute)
	c, err := n.client(t.Context())
	require.NoError(t, err)
	defer c.Close()
	_, err = c.MkdirAll(t.Context(), "/scratch/iter_0000007/mp_rank_00", 0o755)
	require.NoError(t, err)
	f, err := c.Create(t.Context(), "/scratch/iter_0000007/mp_rank_00/model_optim_rng.pt", client.CreateOptions{})
	require.NoError(t, err)
	_, err = f.Write(data(7, 0))
	require.NoError(t, err)
	_, err = f.Commit(t.Context())
	require.NoError(t, err)
	_, err = adopt.Dir(t.Context(), c.Client, "/scratch/iter_0000007", adopt.Options{Run: runPath, Step: 7, Format: adopt.Megatron, Complete: true})
	require.NoError(t, err)

	p := n.peer(runPath, "one", 1)
	require.NoError(t, p.ask(&agentproto.Request{Resolve: &agentproto.Resolve{}}))
	err = p.ask(&agentproto.Request{Tensors: &agentproto.Tensors{}})
	require.ErrorIs(t, err, moraine.Unimplemented)
	require.ErrorContains(t, err, "the step is adopted from files")
	err = p.ask(&agentproto.Request{Fetch: &agentproto.Fetch{Bytes: 4096, Slices: []agentproto.Slice{{Name: "w", Shape: []int64{1}, Offset: []int64{0}, Bytes: 1}}}})
	require.ErrorIs(t, err, moraine.Unimplemented)
}
