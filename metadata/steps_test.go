package metadata_test

import (
	"context"
	"fmt"
	"math"
	"strings"
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

// TestTimesPastTheirBounds: a step that would wait for its ranks for years, a level that is none, and a policy that
// keeps steps for millennia, are refused.
func TestTimesPastTheirBounds(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		c.fleet(3)
		a := c.open(peer(transport.RoleClient, "c1"))
		run := a.openRun("r")
		level := uint32(moraine.NVMe)
		begin := func(step, timeout uint64) error {
			_, err := a.do(&wire.MetaRequest{Op: &wire.MetaRequest_BeginStep{BeginStep: &wire.BeginStep{
				Key: &wire.StepKey{Run: run.Id, Attempt: run.Attempt, Step: step}, World: 1, SealTimeoutMillis: timeout, Level: level}}})
			return err
		}
		require.NoError(t, begin(1, wire.MaxSealTimeoutMillis))
		for _, level = range []uint32{5, 256 + uint32(moraine.NVMe), math.MaxUint32} {
			require.ErrorIs(t, begin(2, 0), moraine.InvalidArgument)
		}
		level = 0
		keep := func(millis uint64) error {
			policy := &wire.Policy{Checkpoint: &wire.CheckpointPolicy{Levels: []*wire.LevelPolicy{{Level: uint32(moraine.NVMe), KeepMillis: millis}}}}
			_, err := a.do(&wire.MetaRequest{Op: &wire.MetaRequest_SetPolicy{SetPolicy: &wire.SetPolicy{Inode: run.Id, Policy: policy}}})
			return err
		}
		require.NoError(t, keep(wire.MaxKeepMillis))
		for _, past := range []uint64{1, math.MaxInt64, math.MaxUint64 - wire.MaxKeepMillis} {
			err := begin(2, wire.MaxSealTimeoutMillis+past)
			require.ErrorIs(t, err, moraine.InvalidArgument)
			require.ErrorContains(t, err, "604800000 ms for the next seal at most")
			require.ErrorIs(t, keep(wire.MaxKeepMillis+past), moraine.InvalidArgument)
		}
	})
}

// TestWhenRanksBeganAndSealed: the list of parts says when each rank began and sealed, and what its session has sent
// meanwhile. A rank that begins again in its session has begun before.
func TestWhenRanksBeganAndSealed(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		c.fleet(3)
		a, b := c.open(peer(transport.RoleClient, "c1")), c.open(peer(transport.RoleClient, "c2"))
		run := a.openRun("r")
		key := &wire.StepKey{Run: run.Id, Attempt: run.Attempt, Step: 1}
		begin := func(k *client, rank uint32) int64 {
			_, err := k.do(&wire.MetaRequest{Op: &wire.MetaRequest_BeginStep{BeginStep: &wire.BeginStep{Key: key, Rank: rank, World: 2, Bytes: 5 << 20}}})
			require.NoError(t, err)
			return time.Now().UnixNano()
		}
		parts := func(begun bool) []*wire.Part {
			resp, err := b.do(&wire.MetaRequest{Op: &wire.MetaRequest_ListParts{ListParts: &wire.ListParts{Key: key, Begun: begun}}})
			require.NoError(t, err)
			return resp.GetParts().GetParts()
		}
		require.Empty(t, parts(true))
		first := begin(a, 0)
		time.Sleep(3 * time.Second)
		begin(a, 0)
		second := begin(b, 1)
		require.Empty(t, parts(false), "none has sealed")
		all := parts(true)
		require.Len(t, all, 2)
		for rank, began := range []int64{first, second} {
			p := all[rank]
			require.EqualValues(t, rank, p.Rank)
			require.InDelta(t, began, p.BegunAt, float64(time.Second))
			require.Zero(t, p.SealedAt)
			require.EqualValues(t, 5<<20, p.Reserved)
			require.Zero(t, p.Sent)
		}
		require.NotEqual(t, all[0].Session, all[1].Session)

		const sent = 1 << 20
		file := a.sends(sent)
		all = parts(true)
		require.EqualValues(t, sent, all[0].Sent)
		require.Zero(t, all[1].Sent)
		time.Sleep(3 * time.Second)
		_, err := a.do(&wire.MetaRequest{Op: &wire.MetaRequest_SealPart{SealPart: &wire.SealPart{Key: key, Digest: make([]byte, 32),
			Files: []*wire.PartFile{{Inode: file, Name: "a", Size: sent}}}}})
		require.NoError(t, err)
		for _, begun := range []bool{false, true} {
			p := parts(begun)[0]
			require.InDelta(t, first, p.BegunAt, float64(time.Second))
			require.InDelta(t, time.Now().UnixNano(), p.SealedAt, float64(time.Second))
			require.Zero(t, p.Session)
			require.Zero(t, p.Sent)
			require.Len(t, p.Files, 1)
		}
	})
}

// sends commits bytes to a file without a name, as a rank does before it seals, and returns the file.
func (k *client) sends(bytes uint64) (inode uint64) {
	t := k.c.t
	t.Helper()
	g, err := k.grant(1, nil)
	require.NoError(t, err)
	resp, err := k.do(&wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{
		Parent: root, Type: wire.FileType_FILE_TYPE_REGULAR, Mode: 0o644, Unlinked: true}}})
	require.NoError(t, err)
	s := &wire.Stripe{Id: g.Placements[0].Stripe, Scheme: g.Placements[0].Scheme, Version: 1, Length: bytes}
	for _, d := range g.Placements[0].Devices {
		s.Chunks = append(s.Chunks, &wire.ChunkState{Device: d, Level: uint32(moraine.NVMe)})
	}
	inode = resp.GetEntry().Attr.Inode
	_, err = k.do(&wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: &wire.Commit{Inode: inode,
		Mode: wire.CommitMode_COMMIT_MODE_APPEND, Level: uint32(moraine.NVMe), Stripes: []*wire.Stripe{s},
		Extents: []*wire.Extent{{Length: bytes, Stripe: s.Id}}}}})
	require.NoError(t, err)
	return inode
}

// TestWhatARankHasSentCountsOnce: bytes that a rank has announced, and has on devices by now, are not
// announced once more when others compare with the free space.
func TestWhatARankHasSentCountsOnce(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		c.fleet(3)
		a, b := c.open(peer(transport.RoleClient, "c1")), c.open(peer(transport.RoleClient, "c2"))
		run := a.openRun("r")
		begin := func(k *client, rank uint32, bytes uint64) error {
			_, err := k.do(&wire.MetaRequest{Op: &wire.MetaRequest_BeginStep{BeginStep: &wire.BeginStep{
				Key: &wire.StepKey{Run: run.Id, Attempt: run.Attempt, Step: 1}, Rank: rank, World: 2, Bytes: bytes}}})
			return err
		}
		err := begin(a, 0, 1<<45)
		require.ErrorIs(t, err, moraine.NoSpace)
		var room uint64
		_, err = fmt.Sscanf(err.Error()[strings.Index(err.Error(), "have room for"):], "have room for %d bytes", &room)
		require.NoError(t, err)

		const announced, sent = 50 << 20, 1 << 20
		require.NoError(t, begin(a, 0, announced))
		require.ErrorIs(t, begin(b, 1, room-announced+1), moraine.NoSpace)
		a.sends(sent)
		require.ErrorIs(t, begin(b, 1, room-announced+sent+1), moraine.NoSpace)
		require.NoError(t, begin(b, 1, room-announced+sent))
		require.ErrorIs(t, begin(a, 0, announced+sent), moraine.NoSpace, "its own file is no credit for a rank that begins again")
	})
}
