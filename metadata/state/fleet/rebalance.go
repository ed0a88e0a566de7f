package fleet

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// A REBALANCE job moves chunks of healthy stripes that the leader chose. It works like a repair:
// each chunk is written under an intent, and the stripe's layout changes once the chunk is in
// place. Its stripes are in the repair queue as the job's own and are counted separately. If such a
// stripe comes to need repair, the job loses it at once, so that repair never waits for a move.

// Bounds of the settings, and their defaults.
const (
	defaultBand = 50 // thousandths of a device's capacity
	minBand     = 5
	maxBand     = 500

	defaultRebalanceBytes = 64 << 20 // bytes per second, to and from each host
	minRebalanceBytes     = 1 << 20
	maxRebalanceBytes     = 1 << 40
)

// RebalanceSettings returns the settings in force.
func RebalanceSettings(v *kvtx.View) (record.RebalanceSettings, error) {
	s := record.RebalanceSettings{BandPermille: defaultBand, BytesPerSecond: defaultRebalanceBytes}
	b, ok, err := v.R.Get(v.K.Meta(record.MetaRebalance))
	if err != nil || !ok {
		return s, err
	}
	return s, s.Decode(b)
}

// SetRebalance changes the given settings. Repeating it changes nothing.
func SetRebalance(t *kvtx.Tx, op *wire.SetRebalance) (*wire.MetaResponse, error) {
	s, err := RebalanceSettings(&t.View)
	if err != nil {
		return nil, err
	}
	if op.Paused != nil {
		s.Paused = op.GetPaused()
	}
	if op.BandPermille != nil {
		s.BandPermille = op.GetBandPermille()
	}
	if op.BytesPerSecond != nil {
		s.BytesPerSecond = op.GetBytesPerSecond()
	}
	switch {
	case s.BandPermille < minBand || s.BandPermille > maxBand:
		return nil, kvtx.Fail(moraine.InvalidArgument, "set rebalance", "", "the band is %d thousandths, but must be %d to %d", s.BandPermille, minBand, maxBand)
	case s.BytesPerSecond < minRebalanceBytes || s.BytesPerSecond > maxRebalanceBytes:
		return nil, kvtx.Fail(moraine.InvalidArgument, "set rebalance", "", "the rate is %d bytes per second, but must be 1 MiB to 1 TiB", s.BytesPerSecond)
	}
	t.Put(t.K.Meta(record.MetaRebalance), s.Encode())
	return kvtx.Done(), nil
}

// CreateRebalance creates a job for those of its stripes that are healthy and have no job, with the
// intents that it names. A job without stripes is not created.
func CreateRebalance(t *kvtx.Tx, w *wire.Job) (*wire.Job, error) {
	var claimed []stripeClaim
	var intents []*wire.Intent
	seen := make(map[uint64]bool)
	for _, task := range w.GetRepairs() {
		id := task.GetStripe().GetId()
		if seen[id] {
			continue
		}
		seen[id] = true
		item, err := balanceItem(t, moraine.StripeID(id))
		if err != nil {
			return nil, err
		}
		if item != nil {
			claimed, intents = append(claimed, stripeClaim{item: item}), append(intents, task.GetIntents()...)
		}
	}
	return createStripeJob(t, w, claimed, intents)
}

// balanceItem returns the queue item of a stripe for a REBALANCE job; nil if the stripe is dead,
// queued already, or not healthy.
func balanceItem(t *kvtx.Tx, id moraine.StripeID) (*record.RepairItem, error) {
	old, err := RepairOf(&t.View, id)
	if err != nil || old != nil {
		return nil, err
	}
	s, err := Stripe(&t.View, id)
	if err != nil || s == nil {
		return nil, err
	}
	h, err := HealthOf(&t.View, s, 0)
	if err != nil || !h.Sound(s) {
		return nil, err
	}
	return &record.RepairItem{Stripe: id, Spare: h.spare(), Since: t.ClusterTime(), Balance: true}, nil
}

// unbalance takes a stripe from its REBALANCE job: its intents end, and the state refuses what the
// mover still commits under them. The caller writes the item.
func unbalance(t *kvtx.Tx, s *moraine.Stripe, item *record.RepairItem) error {
	if err := endIntentsOf(t, item.Job, s); err != nil {
		return err
	}
	item.Job, item.Balance = 0, false
	return nil
}

// Rebalancing returns the number of stripes that REBALANCE jobs work on.
func Rebalancing(r *kvtx.View) (uint64, error) {
	c, err := r.Counters()
	return c[record.CRebalancing], err
}

// JobKind returns a job's kind; unspecified if the job is no longer known.
func JobKind(r *kvtx.View, id moraine.JobID) (wire.JobKind, error) {
	j, err := jobs.Job(r, id)
	if err != nil || j == nil {
		return wire.JobKind_JOB_KIND_UNSPECIFIED, err
	}
	return j.Kind, nil
}

// Queued reports whether a stripe is on the repair queue or a job works on it.
func Queued(r *kvtx.View, id moraine.StripeID) (bool, error) {
	item, err := RepairOf(r, id)
	return item != nil, err
}

// DeadBytes returns approximately the bytes of a device that are dead and not deleted yet. It
// counts each chunk with the largest overhead of its record. It returns false if there are more
// than limit chunks.
func DeadBytes(r *kvtx.View, id moraine.DeviceID, limit int) (bytes uint64, chunks int, all bool, err error) {
	all = true
	kept, err := KeptOn(r, id)
	if err != nil {
		return 0, 0, false, err
	}
	bytes = kept.Used // counted by the total: it may be most of a day's chunks
	err = DeviceTombstones(r, id, false, func(_ moraine.ChunkID, _ uint64, s record.Tombstone) bool {
		if all = chunks < limit; all {
			chunks++
			bytes += uint64(s.Bytes) + recordOverhead
		}
		return all
	})
	return bytes, chunks, all, err
}

// recordOverhead is the most bytes of a device record besides the chunk: header, checksums and
// rounding.
const recordOverhead = 3 * 4096
