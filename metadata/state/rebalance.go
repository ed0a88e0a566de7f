package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// A REBALANCE job moves chunks of stripes that nothing is wrong with, as the leader
// chose them. It is a repair in all but its reason: each chunk is put under an intent,
// and the stripe's layout is swapped once it is in place. What it works on stands in
// the repair queue as the job's own, and is counted apart; where such a stripe comes to
// need repair the job loses it at once, so that repair never waits for a move.

// Bounds of the settings, and what is in force where nobody set any.
const (
	DefaultBand = 50 // thousandths of a device's capacity
	MinBand     = 5
	MaxBand     = 500

	DefaultRebalanceBytes = 64 << 20 // a second, to and from each host
	MinRebalanceBytes     = 1 << 20
	MaxRebalanceBytes     = 1 << 40
)

func (v *view) rebalanceSettings() (record.RebalanceSettings, error) {
	s := record.RebalanceSettings{BandPermille: DefaultBand, BytesPerSecond: DefaultRebalanceBytes}
	b, ok, err := v.r.Get(v.k.meta(record.MetaRebalance))
	if err != nil || !ok {
		return s, err
	}
	return s, s.Decode(b)
}

// RebalanceSettings returns what is in force; false below the feature level of it.
func (m *Machine) RebalanceSettings(r Reader) (s record.RebalanceSettings, known bool, err error) {
	v := m.view(r)
	c, err := v.cluster()
	if err != nil {
		return s, false, err
	}
	s, err = v.rebalanceSettings()
	return s, c.FeatureLevel >= LevelRebalance, err
}

// setRebalance changes the settings that are given. Carried out again it changes
// nothing.
func (m *Machine) setRebalance(t *tx, op *wire.SetRebalance) (*wire.MetaResponse, error) {
	if err := t.mustSpeak("set rebalance", LevelRebalance); err != nil {
		return nil, err
	}
	s, err := t.rebalanceSettings()
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
	case s.BandPermille < MinBand || s.BandPermille > MaxBand:
		return nil, fail(moraine.InvalidArgument, "set rebalance", "", "a band of %d thousandths: %d to %d", s.BandPermille, MinBand, MaxBand)
	case s.BytesPerSecond < MinRebalanceBytes || s.BytesPerSecond > MaxRebalanceBytes:
		return nil, fail(moraine.InvalidArgument, "set rebalance", "", "%d bytes a second: 1 MiB to 1 TiB", s.BytesPerSecond)
	}
	t.put(t.k.meta(record.MetaRebalance), s.Encode())
	return done(), nil
}

// createRebalance makes a job of those of its stripes that nothing is wrong with and
// that no job works on, with the intents that it names; a job of none is not made.
func (m *Machine) createRebalance(t *tx, w *wire.Job) (*wire.Job, error) {
	if err := t.mustSpeak("create jobs", LevelRebalance); err != nil {
		return nil, err
	}
	var claimed []stripeClaim
	var intents []*wire.Intent
	seen := make(map[uint64]bool)
	for _, task := range w.GetRepairs() {
		id := task.GetStripe().GetId()
		if seen[id] {
			continue
		}
		seen[id] = true
		item, err := m.balanceItem(t, moraine.StripeID(id))
		if err != nil {
			return nil, err
		}
		if item != nil {
			claimed, intents = append(claimed, stripeClaim{item: item}), append(intents, task.GetIntents()...)
		}
	}
	return m.createStripeJob(t, w, claimed, intents)
}

// balanceItem returns the item of a stripe that a REBALANCE job may take; nil where it
// may not: it is dead, queued already, or not sound.
func (m *Machine) balanceItem(t *tx, id moraine.StripeID) (*record.RepairItem, error) {
	old, err := t.repairOf(id)
	if err != nil || old != nil {
		return nil, err
	}
	s, err := t.stripe(id)
	if err != nil || s == nil {
		return nil, err
	}
	h, err := t.healthOf(s, 0)
	if err != nil || !h.sound(s) {
		return nil, err
	}
	return &record.RepairItem{Stripe: id, Spare: h.spare(), Since: t.clusterTime(), Balance: true}, nil
}

// unbalance takes a stripe from the REBALANCE job that works on it: its intents end, and
// what the mover still puts or commits under them is refused. The caller writes the item.
func (m *Machine) unbalance(t *tx, s *moraine.Stripe, item *record.RepairItem) error {
	if err := m.endIntentsOf(t, item.Job, s); err != nil {
		return err
	}
	item.Job, item.Balance = 0, false
	return nil
}

// Rebalancing returns how many stripes REBALANCE jobs work on.
func (m *Machine) Rebalancing(r Reader) (uint64, error) {
	c, err := m.view(r).counters()
	return c[record.CRebalancing], err
}

// JobKind returns what a job is; unspecified where it is not known any more.
func (m *Machine) JobKind(r Reader, id moraine.JobID) (wire.JobKind, error) {
	j, err := m.view(r).job(id)
	if err != nil || j == nil {
		return wire.JobKind_JOB_KIND_UNSPECIFIED, err
	}
	return j.Kind, nil
}

// Queued reports whether a stripe is on the repair queue, or a job works on it.
func (m *Machine) Queued(r Reader, id moraine.StripeID) (bool, error) {
	item, err := m.view(r).repairOf(id)
	return item != nil, err
}

// DeadBytes returns about how many bytes of a device are dead and not deleted yet,
// each chunk counted with the most that its record takes besides; false where there
// are more than limit chunks.
func (m *Machine) DeadBytes(r Reader, id moraine.DeviceID, limit int) (bytes uint64, chunks int, all bool, err error) {
	all = true
	kept, err := m.KeptOn(r, id)
	if err != nil {
		return 0, 0, false, err
	}
	bytes = kept.Used // not counted one by one: it may be most of a day's
	err = m.view(r).deviceTombstones(id, false, func(_ moraine.ChunkID, _ uint64, s record.Tombstone) bool {
		if all = chunks < limit; all {
			chunks++
			bytes += uint64(s.Bytes) + recordOverhead
		}
		return all
	})
	return bytes, chunks, all, err
}

// recordOverhead is the most that a device's record takes beside a chunk's bytes: its
// header and its sums, and what rounding adds.
const recordOverhead = 3 * 4096
