package state_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// The ID of a metadata server belongs to one directory for ever.
func TestAMemberHasOneDirectory(t *testing.T) {
	b := newBench(t)
	set := func(id string, dir moraine.UUID) string {
		return kind(b.apply(&statepb.Command{Op: &statepb.Command_SetMember{SetMember: &statepb.SetMember{Id: id, DataId: dir[:]}}}).Response)
	}
	_, known, err := fleet.Member(b.m.View(b.kv), "m1")
	require.NoError(t, err)
	require.False(t, known)
	require.Equal(t, "ok", set("m1", moraine.UUID{1}))
	require.Equal(t, "ok", set("m1", moraine.UUID{1}))
	require.Equal(t, "conflict", set("m1", moraine.UUID{2}))
	require.Equal(t, "ok", set("m2", moraine.UUID{2}))
	require.Equal(t, "invalid argument", set("", moraine.UUID{2}))
	dir, known, err := fleet.Member(b.m.View(b.kv), "m1")
	require.NoError(t, err)
	require.True(t, known)
	require.Equal(t, moraine.UUID{1}, dir)
	b.check()
}

// In a new incarnation nothing deletes a chunk that the previous history may have committed. A
// chunk explained only by an ended grant of that history is kept.
func TestAnotherIncarnationQuarantines(t *testing.T) {
	b := newCluster(t, 3)
	c := b.open(nil)
	g := c.grant(c.mkfile(c.root, "f"), 2)
	chunk := &wire.ChunkReport{Stripe: g, Index: 0, Version: 1}
	fate := func() fleet.Fate {
		v, err := fleet.ClassifyChunk(b.m.View(b.kv), 1, chunk, 1<<40)
		require.NoError(t, err)
		return v.Fate
	}
	require.Equal(t, fleet.Pending, fate(), "the grant lives")
	b.apply(&statepb.Command{Op: &statepb.Command_ExpireSessions{ExpireSessions: &statepb.ExpireSessions{Sessions: []uint64{c.id}}}})
	for range 3 {
		b.tick(1000)
	}
	require.Equal(t, fleet.Dead, fate())
	b.ok(b.apply(&statepb.Command{Op: &statepb.Command_RaiseIncarnation{RaiseIncarnation: &statepb.RaiseIncarnation{}}}).Response)
	require.Equal(t, fleet.Unknown, fate())
	d := b.open(nil)
	require.EqualValues(t, 2, moraine.ID(d.id).Incarnation())
	h := d.grant(d.mkfile(d.root, "g"), 1)
	require.EqualValues(t, 2, moraine.ID(h).Incarnation(), "no number is issued again")
	b.check()
	if *rewriteLogs {
		b.writeLog("v1-incarnation")
	}
}

// A new incarnation may start from a state older than the chunks on the devices, so the devices
// report again.
func TestAnotherIncarnationForgetsReports(t *testing.T) {
	b := newCluster(t, 1)
	reported := func() bool {
		all, err := fleet.Devices(b.m.View(b.kv))
		require.NoError(t, err)
		return all[0].Reported
	}
	complete := func(at uint64) {
		b.ok(b.apply(&statepb.Command{Op: &statepb.Command_CompleteReport{CompleteReport: &statepb.CompleteReport{Device: 1, PassStarted: at, Reported: at}}}).Response)
	}
	require.False(t, reported())
	complete(b.index)
	require.True(t, reported())
	before := b.index
	b.ok(b.apply(&statepb.Command{Op: &statepb.Command_RaiseIncarnation{RaiseIncarnation: &statepb.RaiseIncarnation{}}}).Response)
	require.False(t, reported())
	complete(before)
	require.False(t, reported(), "the report began under the incarnation before")
	complete(b.index)
	require.True(t, reported())
}
