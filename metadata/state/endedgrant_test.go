package state_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/transport/wire"
)

func (b *bench) endedGrants() int {
	b.t.Helper()
	n, err := fleet.EndedGrants(b.m.View(b.kv), 1<<20)
	require.NoError(b.t, err)
	return n
}

// TestEndedGrantsAreBounded: one device is out and never retired while clients receive and end
// 2,400 grants. The state folds old ended grants, across the reports that it receives, and they
// still explain their chunks. A live grant between them stays, and so do recent ones. When the
// device reports, all go.
func TestEndedGrantsAreBounded(t *testing.T) {
	const hour = 3600_000
	b := newCluster(t, 3)
	b.tick(1000)
	c := b.open(nil)
	b.passes(1, 2, 3)
	c.setState(3, wire.DeviceState_DEVICE_STATE_OUT)
	end := func(first uint64) {
		c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_EndGrant{EndGrant: &wire.EndGrant{First: first}}}))
	}
	var first, live, last uint64
	for n := range 2400 {
		g := c.grant(0, 3)
		switch n {
		case 0:
			first = g
		case 1200:
			live = g
			continue
		case 2399:
			last = g
		}
		end(g)
	}
	young := func() uint64 { g := c.grant(0, 3); end(g); return g }
	require.Equal(t, 2399, b.endedGrants())
	b.passes(1, 2)
	require.Equal(t, 2399, b.endedGrants(), "they have just ended")
	chunkOf := func(id uint64) *wire.ChunkReport { return &wire.ChunkReport{Stripe: id, Version: 1, Length: 4096} }
	fate := func(id uint64, olderThan uint64) fleet.Fate {
		v, err := fleet.ClassifyChunk(b.m.View(b.kv), moraine.DeviceID(3), chunkOf(id), olderThan)
		require.NoError(t, err)
		return v.Fate
	}

	for range 2 * hour / 1000 {
		b.tick(1000)
	}
	g := young()
	for range 3 { // each one looks at 2,000 grants
		b.passes(1, 2)
		b.check()
	}
	require.LessOrEqual(t, b.endedGrants(), 5)
	for _, id := range []uint64{first, first + 2, live - 1, live + 3, last, last + 2} {
		require.Equal(t, fleet.Dead, fate(id, 2*hour), "stripe %d", id)
		require.Equal(t, fleet.Pending, fate(id, 0), "its grant has not ended for long enough")
	}
	require.Equal(t, fleet.Pending, fate(live+1, 2*hour), "its grant is live")
	require.Equal(t, fleet.Pending, fate(g, 2*hour), "its grant ended a moment ago")
	require.Equal(t, fleet.Unknown, fate(g+1000, 2*hour), "the number was given to nobody")
	f := c.mkfile(c.root, "f")
	c.ok(c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Level: 3,
		Stripes: []*wire.Stripe{stripe(live, 10, 1, 2)}, Extents: []*wire.Extent{extent(0, 10, live, 0)}}))

	b.passes(3, 1, 2)
	b.passes(1, 2)
	require.Zero(t, b.endedGrants())
	b.check()
}
