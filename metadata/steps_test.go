package metadata_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

func (k *client) openRun(name string) *wire.Run {
	k.c.t.Helper()
	resp, err := k.do(&wire.MetaRequest{Op: &wire.MetaRequest_OpenRun{OpenRun: &wire.OpenRun{Parent: root, Name: name, Launch: "l1"}}})
	require.NoError(k.c.t, err)
	return resp.GetRun().Run
}

func (k *client) beginStep(run *wire.Run, rank, world uint32, timeout time.Duration) *wire.StepKey {
	k.c.t.Helper()
	key := &wire.StepKey{Run: run.Id, Attempt: run.Attempt, Step: 100}
	_, err := k.do(&wire.MetaRequest{Op: &wire.MetaRequest_BeginStep{BeginStep: &wire.BeginStep{
		Key: key, Rank: rank, World: world, SealTimeoutMillis: uint64(timeout.Milliseconds())}}})
	require.NoError(k.c.t, err)
	return key
}

func (k *client) getStep(key *wire.StepKey, wait time.Duration) *wire.Step {
	k.c.t.Helper()
	resp, err := k.ask(&wire.MetaRequest{Op: &wire.MetaRequest_GetStep{GetStep: &wire.GetStep{Key: key, WaitMillis: uint64(wait.Milliseconds())}}})
	require.NoError(k.c.t, err)
	return resp.GetStep().Step
}

func TestSilentStepIsAborted(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		k := c.open(peer(transport.RoleClient, "c1"))
		key := k.beginStep(k.openRun("r"), 0, 2, 10*time.Second)
		time.Sleep(5 * time.Second)
		require.Equal(t, wire.StepState_STEP_STATE_OPEN, k.getStep(key, 0).State)

		began := time.Now()
		s := k.getStep(key, 20*time.Second) // woken by the abort
		require.Equal(t, wire.StepState_STEP_STATE_ABORTED, s.State)
		require.Equal(t, []uint32{0, 1}, s.Missing)
		require.Less(t, time.Since(began), 8*time.Second)
	})
}

func TestStepOfADeadSessionIsAborted(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		dead, alive := c.open(peer(transport.RoleClient, "c1")), c.open(peer(transport.RoleClient, "c2"))
		key := dead.beginStep(dead.openRun("r"), 7, 8, time.Hour)
		for range 8 {
			time.Sleep(9 * time.Second)
			require.NoError(t, alive.renew())
		}
		synctest.Wait()
		s := alive.getStep(key, 0)
		require.Equal(t, wire.StepState_STEP_STATE_ABORTED, s.State)
		require.Contains(t, s.Reason, "7")
	})
}

func TestGetStepGivesUpWaiting(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		k := c.open(peer(transport.RoleClient, "c1"))
		key := k.beginStep(k.openRun("r"), 0, 2, time.Hour)
		began := time.Now()
		require.Equal(t, wire.StepState_STEP_STATE_OPEN, k.getStep(key, 3*time.Second).State)
		require.Equal(t, 3*time.Second, time.Since(began))

		ctx, cancel := context.WithTimeout(transport.WithPeer(context.Background(), k.peer), 2*time.Second)
		defer cancel()
		resp, err := c.leader().Do(ctx, &wire.MetaRequest{RoutingEpoch: 1, Session: k.session, Op: &wire.MetaRequest_GetStep{
			GetStep: &wire.GetStep{Key: key, WaitMillis: 20000}}})
		require.NoError(t, err, "the answer comes in time for the caller's deadline")
		require.Equal(t, wire.StepState_STEP_STATE_OPEN, resp.GetStep().Step.State)
	})
}

// TestAStepThatHasNoRoomIsRefused: the leader compares what all ranks of open steps have announced
// with the free space of the devices, before a rank writes a byte.
func TestAStepThatHasNoRoomIsRefused(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		c.fleet(3) // 3 TiB of chunks, less the reserve of repair
		k := c.open(peer(transport.RoleClient, "c1"))
		run := k.openRun("r")
		begin := func(step uint64, rank uint32, bytes uint64) error {
			_, err := k.do(&wire.MetaRequest{Op: &wire.MetaRequest_BeginStep{BeginStep: &wire.BeginStep{
				Key: &wire.StepKey{Run: run.Id, Attempt: run.Attempt, Step: step}, Rank: rank, World: 2, Bytes: bytes}}})
			return err
		}
		err := begin(1, 0, 1<<40) // copies on three hosts have room for 980 GiB of bytes
		require.ErrorIs(t, err, moraine.NoSpace)
		require.ErrorContains(t, err, "remove old steps")
		require.NoError(t, begin(1, 0, 600<<30))
		require.NoError(t, begin(1, 0, 600<<30), "the same rank again")
		require.ErrorIs(t, begin(1, 1, 600<<30), moraine.NoSpace)
		require.ErrorIs(t, begin(2, 0, 600<<30), moraine.NoSpace)
		require.NoError(t, begin(1, 1, 300<<30))
		_, err = k.do(&wire.MetaRequest{Op: &wire.MetaRequest_AbortStep{AbortStep: &wire.AbortStep{Key: &wire.StepKey{Run: run.Id, Attempt: run.Attempt, Step: 1}}}})
		require.NoError(t, err)
		require.NoError(t, begin(2, 0, 900<<30))
	})
}
