package state_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// restored returns a restored bench with 6 hosts and a file of one stripe of 3 copies on devices 1
// to 3.
func restored(t *testing.T) (b *bench, c *client, id uint64) {
	b = newCluster(t, 6)
	b.tick(1000)
	c = b.open(nil)
	f := c.mkfile(c.root, "f")
	id = c.grant(f, 1)
	b.ok(c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Level: 3,
		Stripes: []*wire.Stripe{stripe(id, 10, 1, 2, 3)}, Extents: []*wire.Extent{extent(0, 10, id, 0)}}))
	b.passes(1, 2, 3, 4, 5, 6)
	b.ok(b.apply(&statepb.Command{Op: &statepb.Command_RaiseIncarnation{RaiseIncarnation: &statepb.RaiseIncarnation{}}}).Response)
	return b, c, id
}

// passes makes devices report all their chunks, up to the end of the report.
func (b *bench) passes(devices ...uint32) {
	b.t.Helper()
	for _, d := range devices {
		b.ok(b.apply(&statepb.Command{Op: &statepb.Command_CompleteReport{CompleteReport: &statepb.CompleteReport{Device: d, PassStarted: b.index}}}).Response)
	}
}

// misses reports chunks that a device does not have.
func (b *bench) misses(device uint32, stripe uint64, index uint32) {
	b.t.Helper()
	b.ok(b.apply(&statepb.Command{Op: &statepb.Command_QueueRepairs{QueueRepairs: &statepb.QueueRepairs{
		Items: []*statepb.RepairItem{{Stripe: stripe, Index: index, Device: device}}}}}).Response)
}

// copyOf is the report of a chunk of an x3 stripe.
func copyOf(id uint64, index, version uint32) *wire.ChunkReport {
	return &wire.ChunkReport{Stripe: id, Index: index, Version: version, Crc: uint32(id)*31 + index, Length: uint64(moraine.Scheme{K: 1, M: 2}.ChunkLen(10))}
}

func (b *bench) judged(device uint32, c *wire.ChunkReport) fleet.Fate {
	b.t.Helper()
	v, err := fleet.ClassifyChunk(b.m.View(b.kv), moraine.DeviceID(device), c, 1<<40)
	require.NoError(b.t, err)
	return v.Fate
}

func (b *bench) adopts(device uint32, c *wire.ChunkReport) uint64 {
	b.t.Helper()
	resp := b.ok(b.apply(&statepb.Command{Op: &statepb.Command_AdoptChunks{AdoptChunks: &statepb.AdoptChunks{
		Chunks: []*statepb.AdoptedChunk{{Device: device, Chunk: c}}, GraceMillis: 60_000}}}).Response)
	b.check()
	return resp.GetAdopt().GetAdopted()
}

func (b *bench) record(id uint64) *moraine.Stripe {
	b.t.Helper()
	s, err := fleet.StripeByID(b.m.View(b.kv), moraine.StripeID(id))
	require.NoError(b.t, err)
	require.NotNil(b.t, s)
	return s
}

func (b *bench) unreported() int {
	b.t.Helper()
	n, err := fleet.Unreported(b.m.View(b.kv))
	require.NoError(b.t, err)
	return n
}

// TestAdoption: a reported chunk that no record names on its device replaces the record's own chunk
// if it fits and that one is gone. Until the record's own device has reported since the restore,
// the state keeps the other chunk. If the record's own device has its chunk, the other dies.
func TestAdoption(t *testing.T) {
	b, _, id := restored(t)
	require.Equal(t, 6, b.unreported())
	moved := copyOf(id, 0, 2)
	require.Equal(t, fleet.Undecided, b.judged(5, moved))
	require.Zero(t, b.adopts(5, moved), "its own device may have it")
	require.Zero(t, b.drop(&wire.DroppedChunk{Device: 5, Stripe: id, Version: 2, Length: 4096}), "what fits a record is dropped by nobody")

	b.misses(1, id, 0)
	b.passes(1)
	require.Equal(t, fleet.Wanted, b.judged(5, moved))
	for name, c := range map[string]*wire.ChunkReport{
		"other bytes":      {Stripe: id, Index: 0, Version: 2, Crc: moved.Crc + 1, Length: moved.Length},
		"another length":   {Stripe: id, Index: 0, Version: 2, Crc: moved.Crc, Length: moved.Length + 1},
		"the last version": copyOf(id, 0, math.MaxUint32),
		"no such chunk":    copyOf(id, 7, 2),
		"no such stripe":   copyOf(id+1000, 0, 2),
	} {
		require.Equal(t, fleet.Unknown, b.judged(5, c), name)
		require.Zero(t, b.adopts(5, c), name)
	}
	require.Zero(t, b.adopts(9, moved), "there is no such device")
	require.EqualValues(t, 1, b.adopts(5, moved))
	require.Zero(t, b.adopts(5, moved), "the answer was lost")
	s := b.record(id)
	require.EqualValues(t, 5, s.Chunks[0].Device)
	require.EqualValues(t, 2, s.Version, "a reader is given a chunk of the record's version at most")
	require.Equal(t, fleet.Live, b.judged(5, moved))
	n, err := kvtx.ReadCounters(b.m.View(b.kv))
	require.NoError(t, err)
	require.Zero(t, n.RepairQueued, "nothing is left to repair")
	require.Equal(t, fleet.Undecided, b.judged(1, copyOf(id, 0, 1)), "device 5 has not said that it has all")

	// The record's own device reports late and has the chunk after all; so does a third device.
	b.passes(5)
	require.Equal(t, fleet.Dead, b.judged(1, copyOf(id, 0, 1)))
	third := copyOf(id, 0, 4)
	require.Equal(t, fleet.Superseded, b.judged(6, third))
	require.Zero(t, b.adopts(6, third))
	require.EqualValues(t, 4, b.record(id).Version, "nothing is put below it")
	require.EqualValues(t, 5, b.record(id).Chunks[0].Device)
	require.Equal(t, fleet.Dead, b.judged(6, third))
	b.passes(2, 3, 4, 6)
	require.Zero(t, b.unreported())
}

// TestAdoptionInPlace: a chunk rebuilt on its own device after the backup has a later version than
// its record. The record adopts that version, because otherwise nobody could read the chunk.
func TestAdoptionInPlace(t *testing.T) {
	b, _, id := restored(t)
	again := copyOf(id, 1, 3)
	require.Equal(t, fleet.Wanted, b.judged(2, again))
	require.EqualValues(t, 1, b.adopts(2, again))
	require.EqualValues(t, 3, b.record(id).Version)
	require.Equal(t, fleet.Live, b.judged(2, again))
	other := copyOf(id, 1, 9)
	other.Crc++
	require.Equal(t, fleet.Damaged, b.judged(2, other))
}

// TestAdoptionOfTheDead: the state takes back a chunk that has been dead for less than the grace.
// The device may already be deleting an older one, so the state takes it back only if the stripe is
// lost otherwise.
func TestAdoptionOfTheDead(t *testing.T) {
	b, _, id := restored(t)
	b.misses(1, id, 0)
	b.passes(1, 2, 3, 4, 5, 6)
	b.repairOf(id, 4)
	j := b.leaseRepair("n2")
	b.ok(b.as("n2", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_CommitRepair{CommitRepair: &wire.CommitRepair{
		Job: j.Id, LeaseEpoch: j.LeaseEpoch, Intents: j.Repairs[0].Intents}}}))
	b.ok(b.as("n2", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_FinishJob{FinishJob: &wire.FinishJob{Id: j.Id, LeaseEpoch: j.LeaseEpoch}}}))
	require.EqualValues(t, 4, b.record(id).Chunks[0].Device)
	was := copyOf(id, 0, 1) // at device 1, where it was replaced
	require.Equal(t, fleet.Dead, b.judged(1, was))

	b.misses(4, id, 0)
	for range 90 {
		b.tick(1000)
	}
	require.Zero(t, b.adopts(1, was), "its deletion may be on its way, and it can be rebuilt")
	require.Equal(t, fleet.Wanted, b.judged(1, copyOf(id, 0, 7)), "the tombstone is of an earlier version")
	dead := func() int {
		list, err := fleet.Tombstones(b.m.View(b.kv), 1, math.MaxUint64, 10)
		require.NoError(t, err)
		return len(list)
	}
	require.Equal(t, 1, dead())
	b.misses(2, id, 1)
	b.misses(3, id, 2)
	require.Zero(t, dead(), "what a stripe needs that is lost is not deleted")
	b.ok(b.setDevice(&wire.SetDeviceState{Device: 1, State: wire.DeviceState_DEVICE_STATE_OUT}))
	require.Equal(t, fleet.Undecided, b.judged(1, was), "its device may be set in again")
	b.ok(b.setDevice(&wire.SetDeviceState{Device: 1, State: wire.DeviceState_DEVICE_STATE_IN}))
	require.Equal(t, fleet.Wanted, b.judged(1, was))
	require.EqualValues(t, 1, b.adopts(1, was))
	require.EqualValues(t, 1, b.record(id).Chunks[0].Device)
	n, err := kvtx.ReadCounters(b.m.View(b.kv))
	require.NoError(t, err)
	require.Zero(t, n.LostStripes)
	require.Zero(t, n.PendingBytes)
	require.Equal(t, fleet.Live, b.judged(1, was))
}

// TestLaterDevicesKeepTheirNumbers: a device registered after the backup keeps its number, so that
// its chunkserver continues. No new device gets that number.
func TestLaterDevicesKeepTheirNumbers(t *testing.T) {
	b, _, _ := restored(t)
	register := func(host string, had uint32) uint32 {
		uuid := make([]byte, 16)
		copy(uuid, host)
		resp := b.ok(b.as(host, "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_RegisterHost{RegisterHost: &wire.RegisterHost{
			Host: &wire.Host{Id: host, Addresses: []string{host + ":1"}, Devices: []*wire.Device{{Id: had, Uuid: uuid, Capacity: 1 << 40, Epoch: 1}}}}}}))
		return resp.GetRegisterHost().GetDevices()[0].Id
	}
	fresh := register("n7", 0)
	require.Greater(t, fresh, uint32(100))
	require.EqualValues(t, 8, register("n8", 8))
	require.EqualValues(t, 8, register("n8", 8), "the answer was lost")
	require.Greater(t, register("n9", 8), fresh, "it is another's")
	require.Greater(t, register("n10", 1<<20), fresh, "that was never given out")
	require.EqualValues(t, 9, register("n11", 9))
	b.check()
}
