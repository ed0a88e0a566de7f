package state_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// deadOn are the stripes whose chunks a device deletes: chunks dead since olderThan, chunks kept
// for backups since keptSince, and additionally that many bytes of kept chunks.
func (b *bench) deadOn(device moraine.DeviceID, olderThan, keptSince, bytes uint64) (plain, kept []uint64) {
	b.t.Helper()
	list, err := fleet.Tombstones(b.m.View(b.kv), device, olderThan, 100)
	require.NoError(b.t, err)
	for _, d := range list {
		plain = append(plain, d.Stripe)
	}
	list, err = fleet.KeptTombstones(b.m.View(b.kv), device, keptSince, olderThan, bytes, 100)
	require.NoError(b.t, err)
	for _, d := range list {
		kept = append(kept, d.Stripe)
	}
	return plain, kept
}

func (b *bench) now() uint64 {
	b.t.Helper()
	now, err := kvtx.ClusterTime(b.m.View(b.kv))
	require.NoError(b.t, err)
	return now
}

// TestWhatDiedIsKeptForBackups: for each way in which a chunk dies, whether a backup may name it.
// If so, the chunk waits for the backup horizon, otherwise only for the grace.
func TestWhatDiedIsKeptForBackups(t *testing.T) {
	for name, row := range map[string]struct {
		dies func(b *bench, c *client, f, stripe uint64)
		kept bool
	}{
		"removed": {func(b *bench, c *client, _, _ uint64) {
			b.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: c.root, Name: "f"}}}))
		}, true},
		"written over": {func(b *bench, c *client, f, _ uint64) {
			id := c.grant(f, 1)
			b.ok(c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Level: 3,
				Stripes: []*wire.Stripe{stripe(id, 10, 1, 2, 3)}, Extents: []*wire.Extent{extent(0, 10, id, 0)}}))
		}, true},
		"moved": {func(b *bench, c *client, _, id uint64) {
			b.misses(1, id, 0)
			b.passes(1, 2, 3, 4, 5, 6)
			b.repairOf(id, 4)
			j := b.leaseRepair("n2")
			b.ok(b.as("n2", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_CommitRepair{CommitRepair: &wire.CommitRepair{
				Job: j.Id, LeaseEpoch: j.LeaseEpoch, Intents: j.Repairs[0].Intents}}}))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newCluster(t, 6)
			b.tick(1000)
			c := b.open(nil)
			f := c.mkfile(c.root, "f")
			id := c.grant(f, 1)
			b.ok(c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Level: 3,
				Stripes: []*wire.Stripe{stripe(id, 10, 1, 2, 3)}, Extents: []*wire.Extent{extent(0, 10, id, 0)}}))
			row.dies(b, c, f, id)
			b.check()
			b.tick(1000)
			plain, kept := b.deadOn(1, b.now(), b.now(), 0)
			if row.kept {
				require.Empty(t, plain)
				require.Equal(t, []uint64{id}, kept)
			} else {
				require.Equal(t, []uint64{id}, plain)
				require.Empty(t, kept)
			}
		})
	}
}

// TestKeptIsGivenBackOldestFirst: the leader deletes kept chunks after the horizon. Before that it
// deletes as many as it needs room for, oldest first, and none within the grace. The state then
// records from when on everything is still there. A report deletes none of them.
func TestKeptIsGivenBackOldestFirst(t *testing.T) {
	b := newCluster(t, 6)
	c := b.open(nil) // chunks that die now die at cluster time 0
	var ids, died []uint64
	for _, name := range []string{"a", "b", "c"} {
		f := c.mkfile(c.root, name)
		id := c.grant(f, 1)
		b.ok(c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Level: 3,
			Stripes: []*wire.Stripe{stripe(id, 10, 1, 2, 3)}, Extents: []*wire.Extent{extent(0, 10, id, 0)}}))
		b.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: c.root, Name: name}}}))
		ids, died = append(ids, id), append(died, b.now())
		b.tick(1000)
	}
	require.Equal(t, fleet.Pending, b.judged(1, copyOf(ids[0], 0, 1)), "a report must not delete it")
	on := func() fleet.Kept {
		k, err := fleet.KeptOn(b.m.View(b.kv), 1)
		require.NoError(t, err)
		return k
	}
	n, err := kvtx.ReadCounters(b.m.View(b.kv))
	require.NoError(t, err)
	require.EqualValues(t, 9*4096, n.KeptBytes)
	require.EqualValues(t, 3*4096, on().Bytes)
	for _, row := range []struct {
		grace, horizon, bytes uint64
		want                  []uint64
	}{
		{died[2], 0, 0, nil},
		{died[2], died[1], 0, ids[:2]},
		{died[2], died[1], 1, ids[:2]}, // frees the room
		{died[2], 0, 1, ids[:1]},
		{died[2], 0, 4097 * 4, ids[:2]},
		{died[2], 0, 1 << 40, ids},
		{died[1], 0, 1 << 40, ids[:2]},
	} {
		_, kept := b.deadOn(1, row.grace, row.horizon, row.bytes)
		require.Equal(t, row.want, kept, "%+v", row)
	}
	require.Zero(t, on().Gone)
	for range 2 { // the answer was lost
		b.ok(b.apply(&statepb.Command{Op: &statepb.Command_DropTombstones{DropTombstones: &statepb.DropTombstones{
			Deleted: []*wire.Deletion{{Device: 1, Stripe: ids[1], Below: 2}}}}}).Response)
		require.Equal(t, died[1], on().Gone)
		require.EqualValues(t, 2*4096, on().Bytes)
		b.check()
	}
}

// TestAdoptionOfWhatIsInMemory: the state does not record a chunk that is only in a chunkserver's
// memory as one on a device. It keeps the chunk, and adopts it once it is durable.
func TestAdoptionOfWhatIsInMemory(t *testing.T) {
	b, _, id := restored(t)
	dirty := copyOf(id, 0, 2)
	dirty.Memory = true
	require.Equal(t, fleet.Pending, b.judged(5, dirty), "nobody remembers it as one to adopt")
	b.misses(1, id, 0)
	b.passes(1)
	require.Equal(t, fleet.Pending, b.judged(5, dirty))
	require.Zero(t, b.adopts(5, dirty))
	again := copyOf(id, 1, 3)
	again.Memory = true
	require.Equal(t, fleet.Pending, b.judged(2, again), "nor where it is in place")
	require.EqualValues(t, 1, b.adopts(5, copyOf(id, 0, 2)))
	require.Equal(t, moraine.NVMe, b.record(id).Chunks[0].Level)
}
