package agent_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

// everyTenth sets that only every 10th step of the run goes to nvme.
func (tr *trainer) everyTenth() {
	tr.n.t.Helper()
	require.NoError(tr.n.t, ckpt.SetPolicy(tr.n.t.Context(), tr.c.Client, tr.run.ID(), ckpt.Policy{{Level: moraine.NVMe, Every: 10}}))
}

// level returns the level of a committed step of attempt 1.
func (tr *trainer) level(step uint64) moraine.Level {
	tr.n.t.Helper()
	info, err := ckpt.GetStep(tr.n.t.Context(), tr.c.Client, client.StepKey{Run: tr.run.ID(), Attempt: 1, Step: step})
	require.NoError(tr.n.t, err)
	require.Equal(tr.n.t, ckpt.StepCommitted, info.State)
	return info.Level
}

// commit saves a step, and waits until it is committed, and until the agent keeps no earlier one.
func (tr *trainer) commit(step uint64) {
	tr.n.t.Helper()
	info, err := tr.save(step, 0).Wait(tr.n.t.Context(), moraine.Memory)
	require.NoError(tr.n.t, err)
	require.Equal(tr.n.t, step%10 != 0, info.StaysInMemory)
	tr.n.eventually(func() bool {
		states := tr.n.states()
		return len(states) == 1 && states[step] == agentproto.Committed
	})
}

// TestAPushBringsTheNewestStepToTheDevices: the agent takes a step that stays in memory for committed, and
// gives back the slots of those before. A push and the end of the agent bring the newest one to nvme, and no
// other. Every 10th goes there by itself.
func TestAPushBringsTheNewestStepToTheDevices(t *testing.T) {
	n := newNode(t, 3*slotBytes)
	n.start(time.Minute)
	tr := n.trainer("one", 0, 1)
	tr.everyTenth()
	for step := uint64(7); step <= 12; step++ {
		tr.commit(step)
	}
	require.Equal(t, moraine.NVMe, tr.level(10))
	push := func() {
		reply, err := agentproto.Ask(t.Context(), n.socket(), &agentproto.Request{Push: &agentproto.Push{DeadlineMillis: 60_000}})
		require.NoError(t, err)
		require.Empty(t, reply.Push.Parts)
	}
	push()
	require.Equal(t, moraine.NVMe, tr.level(12))
	push() // nothing is left to do
	tr.commit(13)
	tr.commit(14)
	require.NoError(t, n.stop())
	require.Equal(t, moraine.NVMe, tr.level(14))
	for _, step := range []uint64{7, 8, 9, 11, 13} {
		require.Equal(t, moraine.Memory, tr.level(step), "step %d", step)
	}
}

// TestAnAgentThatCannotPushSaysSo: the service does not answer while the agent ends. Its newest step is in memory
// only, and its error says that. The next agent knows it too.
func TestAnAgentThatCannotPushSaysSo(t *testing.T) {
	n := newNode(t, 3*slotBytes)
	n.start(time.Second)
	tr := n.trainer("one", 0, 1)
	tr.everyTenth()
	tr.commit(1)
	n.c.Kill("m1", "m2", "m3")
	err := n.stop()
	require.ErrorIs(t, err, moraine.Incomplete)
	require.ErrorContains(t, err, "only in the memory of the cluster (first: "+runPath+" step 1, rank 0)")
	require.NoError(t, n.c.Restart("m1", "m2", "m3"))
	require.NoError(t, n.c.WaitReady(t.Context()))
	n.start(time.Minute)
	require.NoError(t, n.stop())
	require.Equal(t, moraine.NVMe, tr.level(1))
}
