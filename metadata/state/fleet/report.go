package fleet

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// Fate is the state's judgement of a chunk on a device.
type Fate uint8

const (
	// Live: a stripe's record names the chunk.
	Live Fate = iota
	// Damaged: a record names the chunk, and the chunk has other bytes.
	Damaged
	// Pending: the device keeps it. A live grant or intent covers it, or it has not been dead for
	// long enough.
	Pending
	// Dead: the device deletes it. A tombstone, an ended grant or an ended intent has explained it
	// for longer than the grace.
	Dead
	// Unknown: nothing explains it. It is quarantined: counted and never deleted.
	Unknown
	// Wanted: the state adopts it. It fits a record whose device has no such chunk, or an earlier
	// version of it.
	Wanted
	// Undecided: the device keeps it. It fits a record that names another device, which has not
	// reported since the metadata was restored.
	Undecided
	// Superseded: it fits a record that names another device with the chunk. Its version is later
	// than the record's, which must be raised before the deletion.
	Superseded
)

// ChunkVerdict is the judgement of one chunk of a report.
type ChunkVerdict struct {
	Fate Fate
	// Below is, for a Dead chunk, the layout version of its deletion.
	Below moraine.LayoutVersion
	// Unsettled is the log index at which the only explanation of a kept chunk ended; 0 otherwise.
	// A pass with such a chunk must not count as begun after that index: see CompleteReport.
	Unsettled uint64
}

// ClassifyChunk judges a chunk that a device reports. It may be deleted if it died at or before
// olderThan, in milliseconds of cluster time.
func ClassifyChunk(v *kvtx.View, id moraine.DeviceID, c *wire.ChunkReport, olderThan uint64) (ChunkVerdict, error) {
	if c.GetIndex() >= moraine.MaxChunks {
		return ChunkVerdict{Fate: Unknown}, nil
	}
	chunk := moraine.ChunkID{Stripe: moraine.StripeID(c.GetStripe()), Index: uint8(c.GetIndex())}
	version := moraine.LayoutVersion(c.GetVersion())
	s, err := Stripe(v, chunk.Stripe)
	if err != nil {
		return ChunkVerdict{}, err
	}
	if s != nil && int(chunk.Index) < len(s.Chunks) {
		fate, err := placed(v, s, id, c, olderThan)
		if err != nil || fate != Unknown {
			return ChunkVerdict{Fate: fate}, err
		}
	}
	in, err := readIntent(v, chunk)
	if err != nil {
		return ChunkVerdict{}, err
	}
	if in != nil && in.Device == id {
		return ChunkVerdict{Fate: Pending}, nil
	}
	below := version + 1
	if s != nil {
		// Versions are never reused: an unrecorded one was replaced, or its intent ended.
		if version > s.Version {
			return ChunkVerdict{Fate: Unknown}, nil
		}
		below = s.Version + 1 // the next intent has a later version
	}
	return explain(v, id, chunk, version, below, s != nil, olderThan)
}

// explain judges a chunk that no record names and no live intent covers. replaced says that its
// stripe still lives elsewhere.
func explain(v *kvtx.View, id moraine.DeviceID, chunk moraine.ChunkID, version, below moraine.LayoutVersion, replaced bool, olderThan uint64) (ChunkVerdict, error) {
	tomb, since, ok, err := TombstoneOf(v, id, chunk)
	if err != nil {
		return ChunkVerdict{}, err
	}
	if ok && version < tomb.Below {
		if tomb.Kept || since > olderThan { // only its tombstone deletes a kept chunk
			return ChunkVerdict{Fate: Pending}, nil // the tombstone stays and explains it
		}
		return ChunkVerdict{Fate: Dead, Below: tomb.Below}, nil
	}
	if replaced {
		return ChunkVerdict{Fate: Dead, Below: below}, nil
	}
	at, since, ok, err := endOf(v, id, chunk)
	if err != nil {
		return ChunkVerdict{}, err
	}
	switch {
	case ok && at == 0: // a live grant
		return ChunkVerdict{Fate: Pending}, nil
	case ok:
		// An incarnation that continued without this state may have committed the chunk: quarantine
		// it.
		c, err := v.Cluster()
		if err != nil {
			return ChunkVerdict{}, err
		}
		if moraine.ID(chunk.Stripe).Incarnation() < c.Incarnation {
			return ChunkVerdict{Fate: Unknown}, nil
		}
	}
	switch {
	case ok && since > olderThan:
		return ChunkVerdict{Fate: Pending, Unsettled: at}, nil
	case ok:
		return ChunkVerdict{Fate: Dead, Below: below, Unsettled: at}, nil
	}
	return ChunkVerdict{Fate: Unknown}, nil
}

// endOf finds the grant or ended intent under which a chunk was written. It
// returns the log index (0 for a live grant) and the cluster time of its end.
func endOf(v *kvtx.View, id moraine.DeviceID, chunk moraine.ChunkID) (at, since uint64, ok bool, err error) {
	g, live, err := grantOf(v, chunk.Stripe)
	if err != nil {
		return 0, 0, false, err
	}
	if live {
		return 0, 0, true, nil
	}
	b, ended, err := v.R.Get(v.K.EndedIntent(id, chunk))
	if err != nil {
		return 0, 0, false, err
	}
	var e record.EndedIntent
	if ended {
		if e, err = record.DecodeEndedIntent(b); err != nil {
			return 0, 0, false, err
		}
	}
	switch {
	case g != nil && (!ended || g.EndedAt > e.At):
		return g.EndedAt, g.EndedSince, true, nil
	case ended:
		return e.At, e.Since, true, nil
	}
	return 0, 0, false, nil
}

// Expected is a chunk that a device must have.
type Expected struct {
	Chunk moraine.ChunkID
	// Since is the log index at which the chunk came to the device.
	Since uint64
}

// ExpectedChunks returns, in order, at most limit chunks that a device must have of the stripes in
// [from, to); to 0 means the end. A report may lack those that came after it began (Since).
func ExpectedChunks(r *kvtx.View, id moraine.DeviceID, from, to moraine.StripeID, limit int) ([]Expected, error) {
	var out []Expected
	prefix := r.K.DeviceChunks(id)
	hi := kvtx.PrefixEnd(prefix)
	if to != 0 {
		hi = record.Be64(r.K.DeviceChunks(id), uint64(to))
	}
	if limit <= 0 {
		return nil, nil
	}
	err := r.Each(record.Be64(prefix, uint64(from)), hi, func(key, value []byte) (bool, error) {
		since, err := record.DecodePresence(value)
		out = append(out, Expected{Chunk: ChunkOfKey(key), Since: since})
		return len(out) < limit, err
	})
	return out, err
}

// StripeOnRecord returns a stripe's record, nil if there is none, and whether it is on the repair
// queue. A stripe that is only being rebalanced is not.
func StripeOnRecord(v *kvtx.View, id moraine.StripeID) (s *moraine.Stripe, queued bool, err error) {
	if s, err = Stripe(v, id); err != nil || s == nil {
		return nil, false, err
	}
	item, err := RepairOf(v, id)
	return s, item != nil && !item.Balance, err
}

// WireStripe returns a stripe's record in wire form; nil if there is none.
func WireStripe(r *kvtx.View, id moraine.StripeID) (*wire.Stripe, error) {
	s, err := Stripe(r, id)
	if err != nil || s == nil {
		return nil, err
	}
	return wire.StripeToWire(s), nil
}

// CompleteReport records that a pass over all chunks of a device has ended. It deletes records of
// ended grants and intents that no later report can need: they ended before the last pass of every
// device began. pass_started is the log index after which the pass began. If a verdict of the pass
// was Unsettled, it is below the lowest index of these verdicts.
func CompleteReport(t *kvtx.Tx, op *statepb.CompleteReport) (*wire.MetaResponse, error) {
	id := moraine.DeviceID(op.GetDevice())
	d, err := Device(&t.View, id)
	if err != nil {
		return nil, err
	}
	if d == nil || d.State == record.DeviceRetired {
		return nil, kvtx.Fail(moraine.NotFound, "complete report", "device "+record.Utoa(uint64(id)), "")
	}
	t.Count[record.CLeakedBytes] += op.GetUnknownBytes() - d.UnknownBytes
	d.UnknownBytes, d.UnknownChunks, d.Fitting = op.GetUnknownBytes(), op.GetUnknownChunks(), op.GetFittingChunks()
	d.Passed = max(d.Passed, op.GetPassStarted())
	before := d.IsReported()
	if d.Reported = max(d.Reported, op.GetReported()); d.IsReported() != before {
		fleetChanged(t)
	}
	putDevice(t, d)
	if err := dropEndedIntents(t, d); err != nil {
		return nil, err
	}
	return kvtx.Done(), tidyEndedGrants(t)
}

// reportBudget is the number of ended intents that one report deletes.
const reportBudget = 400

// dropEndedIntents deletes the ended intents that a device's last pass made unnecessary.
func dropEndedIntents(t *kvtx.Tx, d *record.Device) error {
	var old [][]byte
	err := t.EachIn(t.K.EndedIntents(d.Id), func(key, value []byte) (bool, error) {
		e, err := record.DecodeEndedIntent(value)
		if err != nil {
			return false, err
		}
		if e.At <= d.Passed {
			old = append(old, append([]byte(nil), key...))
		}
		return len(old) < reportBudget, nil
	})
	for _, key := range old {
		t.Del(key)
	}
	return err
}

// allPassed returns the log index after which the last passes of all devices began that may still
// have chunks.
func allPassed(v *kvtx.View) (uint64, error) {
	var least uint64
	first := true
	err := EachDevice(v, func(d *record.Device) {
		if d.State == record.DeviceRetired {
			return
		}
		if first || d.Passed < least {
			least, first = d.Passed, false
		}
	})
	return least, err
}

// EachDevice calls fn with every device.
func EachDevice(v *kvtx.View, fn func(*record.Device)) error {
	prefix := v.K.Table(record.TabDevice)
	return v.EachIn(prefix, func(key, value []byte) (bool, error) {
		d := &record.Device{Id: moraine.DeviceID(binary.BigEndian.Uint32(key[len(prefix):]))}
		err := d.Decode(value)
		if err == nil {
			fn(d)
		}
		return true, err
	})
}
