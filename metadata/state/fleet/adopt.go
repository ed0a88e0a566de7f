package fleet

import (
	"math"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// A stripe record names one device for each chunk. After a restore, the record
// is older than the devices: drains, repairs and moves have since written the
// chunk to another device. A reported chunk fits a record if stripe, index,
// length and checksum match. If the record's own chunk is gone, the state
// adopts the one that fits: the record names its device from then on. If the
// record's own chunk exists, the other is garbage. Until the record's own
// device has reported, the state keeps a chunk that fits. It keeps one that is
// only in memory, and adopts it when a later report has it on the device. A
// file at level nvme has no chunk below nvme.

// MaxAdopted is the largest number of chunks in one AdoptChunks.
const MaxAdopted = 128

// gone reports whether the chunk that a record names is missing; d is the record's device and may
// be nil.
func gone(c *moraine.ChunkState, d *record.Device) bool {
	return d == nil || !d.Serves() || (c.Level == moraine.Memory && c.Epoch != d.Epoch)
}

// placed judges a chunk on a device by the record of its stripe. The record must have the chunk's
// index. Unknown means that the record does not explain the chunk.
func placed(v *kvtx.View, s *moraine.Stripe, id moraine.DeviceID, c *wire.ChunkReport, olderThan uint64) (Fate, error) {
	own := &s.Chunks[c.GetIndex()]
	fits := own.CRC == c.GetCrc()
	whole := fits && int64(c.GetLength()) == s.Scheme.ChunkLen(s.Length)
	later := c.GetVersion() > uint32(s.Version)
	if later {
		before, err := before(v, s.ID)
		if err != nil {
			return Unknown, err
		}
		whole = whole && before && c.GetVersion() < math.MaxUint32
	}
	switch {
	case own.Device == id && !fits:
		return Damaged, nil
	case own.Device == id && later && whole && c.GetMemory():
		return Pending, nil
	case own.Device == id && later && whole:
		return Wanted, nil
	case own.Device == id:
		return Live, nil
	case !whole:
		return Unknown, nil
	case c.GetMemory():
		return Pending, nil // a record that names it at level nvme would promise too much
	}
	return strays(v, s, id, c, olderThan)
}

// strays is Placed for a chunk that fits a record which names another device.
func strays(v *kvtx.View, s *moraine.Stripe, id moraine.DeviceID, c *wire.ChunkReport, olderThan uint64) (Fate, error) {
	item, err := RepairOf(v, s.ID)
	if err != nil {
		return Unknown, err
	}
	chunk := moraine.ChunkID{Stripe: s.ID, Index: uint8(c.GetIndex())}
	if in, err := readIntent(v, chunk); err != nil || in != nil && in.Device == id {
		return Unknown, err
	}
	d, err := LookDevice(v, id)
	if err != nil {
		return Unknown, err
	}
	own := &s.Chunks[chunk.Index]
	at, err := LookDevice(v, own.Device)
	if err != nil {
		return Unknown, err
	}
	serves := d != nil && d.Serves()
	// Wrongly encoded parity is just as wrong in another copy with the recorded checksum.
	missing := gone(own, at) || item != nil && item.Bad&^item.Recode&(1<<chunk.Index) != 0
	if !missing {
		waits, err := unreported(v, at)
		switch {
		case err != nil:
			return Unknown, err
		case waits, !serves && item != nil && item.Lost():
			return Undecided, nil
		case serves && c.GetVersion() > uint32(s.Version):
			return Superseded, nil
		}
		return Unknown, nil
	}
	if !serves {
		return Undecided, nil // it may be the only one left, once its device is set in
	}
	// If it has been dead for the grace, the device may be deleting it. Another copy can be
	// rebuilt, unless the stripe is lost.
	tomb, since, dead, err := TombstoneOf(v, id, chunk)
	dead = dead && c.GetVersion() < uint32(tomb.Below)
	if err != nil || dead && since <= olderThan && (item == nil || !item.Lost()) {
		return Unknown, err
	}
	return Wanted, nil
}

// before reports whether an earlier incarnation numbered the stripe. Only such a stripe may have a
// chunk with a later version than its record.
func before(v *kvtx.View, id moraine.StripeID) (bool, error) {
	c, err := v.Cluster()
	return err == nil && moraine.ID(id).Incarnation() < c.Incarnation, err
}

// unreported reports whether the content of a device is still unknown: the metadata was restored,
// and the device has not completed a report since.
func unreported(v *kvtx.View, d *record.Device) (bool, error) {
	if !d.Serves() || d.Passed != 0 {
		return false, nil
	}
	c, err := v.Cluster()
	return err == nil && c.Incarnation > 1, err
}

// Unreported returns the number of devices in service that have not completed a report since the
// metadata was restored or a quorum was forced.
func Unreported(v *kvtx.View) (n int, err error) {
	c, err := v.Cluster()
	if err != nil || c.Incarnation <= 1 {
		return 0, err
	}
	err = EachDevice(v, func(d *record.Device) {
		if d.Serves() && d.Passed == 0 {
			n++
		}
	})
	return n, err
}

// laterDevices is how many device numbers a restore reserves for devices that were registered after
// the backup and still use their numbers.
const laterDevices = 4096

// forgetReports makes every device report again before its content counts as known.
func forgetReports(t *kvtx.Tx) error {
	if t.Count[record.CDevice] != 0 {
		t.Count[record.CDevice] += laterDevices
	}
	var all []*record.Device
	err := EachDevice(&t.View, func(d *record.Device) { all = append(all, d) })
	for _, d := range all {
		d.Passed, d.Booted, d.Reported = 0, t.Index, 0
		putDevice(t, d)
	}
	fleetChanged(t)
	return err
}

// AdoptChunks makes records name reported chunks that fit them. It judges each chunk again and
// skips those that are no longer needed.
func AdoptChunks(t *kvtx.Tx, op *statepb.AdoptChunks) (*wire.MetaResponse, error) {
	if len(op.GetChunks()) > MaxAdopted {
		return nil, kvtx.Fail(moraine.TooLarge, "adopt chunks", "", "the command has %d chunks, %d at most", len(op.GetChunks()), MaxAdopted)
	}
	now := t.ClusterTime()
	olderThan := now - min(now, op.GetGraceMillis())
	reply := &wire.AdoptReply{}
	for _, w := range op.GetChunks() {
		id := moraine.DeviceID(w.GetDevice())
		s, err := Stripe(&t.View, moraine.StripeID(w.GetChunk().GetStripe()))
		if err != nil {
			return nil, err
		}
		if s == nil || w.GetChunk().GetIndex() >= uint32(len(s.Chunks)) {
			continue
		}
		fate, err := placed(&t.View, s, id, w.GetChunk(), olderThan)
		if err != nil {
			return nil, err
		}
		switch fate {
		case Wanted:
			reply.Adopted++
			err = adoptChunk(t, s, id, w.GetChunk())
		case Superseded:
			err = supersede(t, s, id, w.GetChunk())
		}
		if err != nil {
			return nil, err
		}
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Adopt{Adopt: reply}}, nil
}

// adoptChunk makes the stripe's record name a chunk that fits it. A chunk that is, or returns, at
// the former place is garbage from then on.
func adoptChunk(t *kvtx.Tx, s *moraine.Stripe, id moraine.DeviceID, w *wire.ChunkReport) error {
	chunk := moraine.ChunkID{Stripe: s.ID, Index: uint8(w.GetIndex())}
	old := s.Layout().Devices
	s.Version = max(s.Version, moraine.LayoutVersion(w.GetVersion()))
	if c := &s.Chunks[chunk.Index]; c.Device != id {
		LeaveMemory(t, s, chunk.Index, c)
		c.Device, c.Level, c.Epoch = id, moraine.NVMe, 0 // Placed never adopts a chunk that is only in memory
		tomb, since, dead, err := TombstoneOf(&t.View, id, chunk)
		if err != nil {
			return err
		}
		if dead {
			if err := DropTombstone(t, id, chunk, tomb, since); err != nil {
				return err
			}
		}
		if _, ended, err := t.Get(t.K.EndedIntent(id, chunk)); err != nil {
			return err
		} else if ended {
			t.Del(t.K.EndedIntent(id, chunk))
		}
	}
	item, err := RepairOf(&t.View, s.ID)
	if err != nil {
		return err
	}
	if item != nil && item.Bad&^item.Recode&(1<<chunk.Index) != 0 {
		mended := *item
		mended.Bad &^= 1 << chunk.Index
		putRepair(t, item, &mended)
	}
	putStripe(t, old, s)
	t.Events.Settled = true // lost files may be whole again
	return QueueRepair(t, s, 0)
}

// supersede adds a tombstone for a chunk that fits a record which has its own chunk. The record
// takes over the chunk's version, so that no later chunk gets a lower version.
func supersede(t *kvtx.Tx, s *moraine.Stripe, id moraine.DeviceID, w *wire.ChunkReport) error {
	s.Version = max(s.Version, moraine.LayoutVersion(w.GetVersion()))
	t.Put(t.K.Stripe(s.ID), record.EncodeStripe(s))
	chunk := moraine.ChunkID{Stripe: s.ID, Index: uint8(w.GetIndex())}
	return AddTombstone(t, id, chunk, moraine.LayoutVersion(w.GetVersion())+1, s.Scheme.ChunkLen(s.Length), false)
}
