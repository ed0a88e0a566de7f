package fleet

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// The repair queue has one item for each stripe below full protection, or about to be. The item
// stays until the stripe is healthy or dead. Items without a job are sorted by least redundancy.

// MaxRepairStripes is the largest number of stripes of one repair job.
const MaxRepairStripes = 32

// repairPause returns how long an item waits after its last failure, in milliseconds.
func repairPause(i *record.RepairItem) uint64 {
	if i.Lost() {
		return record.BackoffTo(i.Tries, record.MaxLostBackoff)
	}
	return jobs.Backoff(i.Tries)
}

// RepairOf returns a stripe's queue item; nil if there is none.
func RepairOf(v *kvtx.View, id moraine.StripeID) (*record.RepairItem, error) {
	b, ok, err := v.R.Get(v.K.RepairStripe(id))
	if err != nil || !ok {
		return nil, err
	}
	i := &record.RepairItem{Stripe: id}
	return i, i.Decode(b)
}

// CountRepair updates the queue's counters: by is 1 for an added item and -1 for a removed one.
func CountRepair(t *kvtx.Tx, i *record.RepairItem, by int) {
	bump := func(c record.Counter) { t.Count[c] += uint64(by) }
	if i.Balance {
		bump(record.CRebalancing)
		return
	}
	bump(record.CRepairQueued)
	if i.Job != 0 {
		bump(record.CRepairRunning)
	}
	if i.Lost() {
		bump(record.CLostStripes)
		return
	}
	bump(min(record.CSpare+record.Counter(i.Spare), record.CSpareMany))
}

// putRepair writes an item; old is its former version, nil if none.
func putRepair(t *kvtx.Tx, old *record.RepairItem, i *record.RepairItem) {
	if i.Lost() != (old != nil && old.Lost()) {
		t.LossChanged()
	}
	if old != nil {
		CountRepair(t, old, -1)
		if old.Job == 0 && (i.Job != 0 || i.Spare != old.Spare) {
			t.Del(t.K.Repair(old.Spare, old.Stripe))
		}
	}
	CountRepair(t, i, 1)
	if i.Job == 0 {
		t.Put(t.K.Repair(i.Spare, i.Stripe), []byte{record.RepairVersion})
		t.Events.RepairsQueued = true
	}
	t.Put(t.K.RepairStripe(i.Stripe), i.Encode())
}

// delRepair removes an item from the queue.
func delRepair(t *kvtx.Tx, i *record.RepairItem) {
	if i.Lost() {
		t.LossChanged()
	}
	CountRepair(t, i, -1)
	if i.Job == 0 {
		t.Del(t.K.Repair(i.Spare, i.Stripe))
	}
	t.Del(t.K.RepairStripe(i.Stripe))
}

// QueueRepair checks a stripe and adds it to the queue, changes its place, or removes it. bad are
// additional chunks known to be bad. A stripe with a job stays until the job ends or loses it.
func QueueRepair(t *kvtx.Tx, s *moraine.Stripe, bad uint32) error {
	return queueRecode(t, s, bad, 0)
}

// queueRecode is QueueRepair; recode are the bad chunks that are parity to encode again.
func queueRecode(t *kvtx.Tx, s *moraine.Stripe, bad, recode uint32) error {
	old, err := RepairOf(&t.View, s.ID)
	if err != nil {
		return err
	}
	item := record.RepairItem{Stripe: s.ID, Since: t.ClusterTime()}
	if old != nil {
		item = *old
	}
	item.Bad |= bad | recode
	item.Recode |= recode
	h, err := HealthOf(&t.View, s, item.Bad)
	if err != nil {
		return err
	}
	if h.Sound(s) && item.Job == 0 {
		if old != nil {
			delRepair(t, old)
		}
		return nil
	}
	if item.Balance && !h.Sound(s) {
		if err := unbalance(t, s, &item); err != nil {
			return err
		}
	}
	item.Spare = h.spare()
	if old != nil && old.Lost() && !h.lost {
		item.Tries, item.After = 0, 0 // failed tries no longer delay it
	}
	if old == nil || *old != item {
		putRepair(t, old, &item)
	}
	return nil
}

// DropRepair removes a dead stripe from the queue. The intents of its job end with the job.
func DropRepair(t *kvtx.Tx, s *moraine.Stripe) error {
	i, err := RepairOf(&t.View, s.ID)
	if err == nil && i != nil {
		delRepair(t, i)
	}
	return err
}

// ReleaseRepairs releases the stripes of a repair job: its intents end, and stripes that are not
// healthy wait again, longer if the job failed.
func ReleaseRepairs(t *kvtx.Tx, j *record.Job, failed bool) error {
	for _, id := range j.Stripes {
		if err := endStripeIntents(t, j.Id, id); err != nil {
			return err
		}
		old, err := RepairOf(&t.View, id)
		if err != nil {
			return err
		}
		if old == nil || old.Job != j.Id {
			continue
		}
		s, err := Stripe(&t.View, id)
		if err != nil {
			return err
		}
		if s == nil {
			return kvtx.Corrupt("release repair", id.String(), "the job repairs the stripe, which has no record")
		}
		item := *old
		if item.Balance { // it is healthy, otherwise the job would have lost it
			delRepair(t, old)
			continue
		}
		item.Job = 0
		if failed {
			item.Tries++
			item.After = t.ClusterTime() + repairPause(&item)
		}
		putRepair(t, old, &item)
		if err := QueueRepair(t, s, 0); err != nil {
			return err
		}
	}
	return nil
}

// CreateRepair creates a repair job for those of its stripes that wait on the queue; nil if there
// are none.
func CreateRepair(t *kvtx.Tx, w *wire.Job) (*wire.Job, error) {
	var claimed []stripeClaim
	var intents []*wire.Intent
	for _, task := range w.GetRepairs() {
		item, err := RepairOf(&t.View, moraine.StripeID(task.GetStripe().GetId()))
		if err != nil {
			return nil, err
		}
		if item == nil || item.Job != 0 {
			continue
		}
		mine := *item
		claimed = append(claimed, stripeClaim{old: item, item: &mine})
		intents = append(intents, task.GetIntents()...)
	}
	return createStripeJob(t, w, claimed, intents)
}

// stripeClaim is a queue item that a new job takes; old is its former version, nil if none.
type stripeClaim struct{ old, item *record.RepairItem }

// createStripeJob creates a job for the claimed items; nil if there are none.
func createStripeJob(t *kvtx.Tx, w *wire.Job, claimed []stripeClaim, intents []*wire.Intent) (*wire.Job, error) {
	if len(claimed) == 0 {
		return nil, nil
	}
	spec := jobs.JobSpec{Kind: w.GetKind(), Subject: record.Clip(w.GetSubject(), moraine.MaxNameLen), Total: uint64(len(claimed))}
	if spec.Subject == "" {
		spec.Subject = record.Utoa(uint64(len(claimed))) + " stripes"
	}
	for _, c := range claimed {
		spec.Stripes = append(spec.Stripes, c.item.Stripe)
	}
	id, err := jobs.AddJob(t, spec)
	if err != nil {
		return nil, err
	}
	for _, c := range claimed {
		c.item.Job = id
		putRepair(t, c.old, c.item)
	}
	j, err := jobs.Job(&t.View, id)
	if err != nil {
		return nil, err
	}
	for _, in := range intents {
		// Skip an intent that became impossible, for example because its device went out. The
		// holder will request another.
		if _, err := recordIntent(t, j, in); err != nil && !kvtx.IsAnswer(err) {
			return nil, err
		}
	}
	reply := j.ToWire()
	reply.Repairs, err = RepairTasks(&t.View, j)
	return reply, err
}

// RepairTasks returns a job's stripes as they are now, with the recorded intents.
func RepairTasks(v *kvtx.View, j *record.Job) ([]*wire.RepairTask, error) {
	var out []*wire.RepairTask
	for _, id := range j.Stripes {
		item, err := RepairOf(v, id)
		if err != nil {
			return nil, err
		}
		if item == nil || item.Job != j.Id {
			continue // it died
		}
		task, err := repairTask(v, item)
		if err != nil {
			return nil, err
		}
		out = append(out, task)
	}
	return out, nil
}

// repairTask returns the repair task of a queue item; nil if its stripe died.
func repairTask(v *kvtx.View, item *record.RepairItem) (*wire.RepairTask, error) {
	s, err := Stripe(v, item.Stripe)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return nil, kvtx.Corrupt("repair queue", item.Stripe.String(), "the queue has the stripe, which has no record")
	}
	h, err := HealthOf(v, s, item.Bad)
	if err != nil {
		return nil, err
	}
	task := &wire.RepairTask{Stripe: wire.StripeToWire(s), Reason: h.reason(), Missing: h.missing, Moving: h.moving, Recode: item.Recode}
	if item.Balance {
		task.Reason = "balance"
	}
	for i := range s.Chunks {
		in, err := readIntent(v, moraine.ChunkID{Stripe: s.ID, Index: uint8(i)})
		if err != nil {
			return nil, err
		}
		if in != nil {
			task.Intents = append(task.Intents, in.ToWire())
		}
	}
	return task, nil
}

// QueueRepairs queues chunks that were reported to the leader as lost, corrupt or stale.
func QueueRepairs(t *kvtx.Tx, op *statepb.QueueRepairs) (*wire.MetaResponse, error) {
	for _, w := range op.GetItems() {
		seen := seenChunk{index: w.GetIndex(), device: moraine.DeviceID(w.GetDevice()), version: moraine.LayoutVersion(w.GetVersion())}
		if err := badChunk(t, moraine.StripeID(w.GetStripe()), seen); err != nil {
			return nil, err
		}
	}
	return kvtx.Done(), nil
}

// ReportBadChunks queues bad chunks that a reader found.
func ReportBadChunks(t *kvtx.Tx, op *wire.ReportBadChunks) (*wire.MetaResponse, error) {
	if len(op.GetChunks()) > maxBadChunks {
		return nil, kvtx.Fail(moraine.TooLarge, "report bad chunks", "", "the request has %d chunks, %d at most", len(op.GetChunks()), maxBadChunks)
	}
	for _, w := range op.GetChunks() {
		switch moraine.Kind(min(w.GetKind(), 255)) {
		case moraine.NotFound, moraine.Corrupt, moraine.Stale, moraine.Lost:
		default:
			continue // an unreachable host does not mean that the chunk is gone
		}
		past, err := outdatedReport(t, w)
		if err == nil && !past {
			past, err = foreign(t, w)
		}
		if err != nil {
			return nil, err
		}
		if past {
			continue
		}
		seen := seenChunk{index: w.GetIndex(), device: moraine.DeviceID(w.GetDevice()), version: moraine.LayoutVersion(w.GetVersion()), parity: w.GetParity()}
		if err := badChunk(t, moraine.StripeID(w.GetStripe()), seen); err != nil {
			return nil, err
		}
	}
	return kvtx.Done(), nil
}

// foreign reports whether the caller is confined to another tenant than the stripe's. It then
// cannot have read the stripe.
func foreign(t *kvtx.Tx, w *wire.BadChunk) (bool, error) {
	if t.Scope.Root == t.K.Top() {
		return false, nil
	}
	s, err := Stripe(&t.View, moraine.StripeID(w.GetStripe()))
	if err != nil || s == nil {
		return false, err
	}
	root, err := tree.Inode(t, t.Scope.Root)
	return err == nil && root.Tenant != s.Tenant, err
}

// outdatedReport reports whether a report names an older version of the stripe's record. Such a
// report is ignored, since the chunk may have been rebuilt in place meanwhile.
func outdatedReport(t *kvtx.Tx, w *wire.BadChunk) (bool, error) {
	if !w.GetAtVersion() {
		return false, nil
	}
	s, err := Stripe(&t.View, moraine.StripeID(w.GetStripe()))
	return s == nil || s.Version != moraine.LayoutVersion(w.GetVersion()), err
}

// maxBadChunks is the largest number of chunks in one report.
const maxBadChunks = 256

// seenChunk is a bad chunk, on the device and in the version in which its finder saw it.
type seenChunk struct {
	index   uint32
	device  moraine.DeviceID
	version moraine.LayoutVersion // 0: any version
	parity  bool                  // the chunk has its recorded checksum but is not the parity of the data
}

// badChunk queues the repair of a stripe with a bad chunk, if the chunk is still where it was
// found.
func badChunk(t *kvtx.Tx, id moraine.StripeID, seen seenChunk) error {
	s, err := Stripe(&t.View, id)
	if err != nil || s == nil {
		return err
	}
	if seen.index >= uint32(len(s.Chunks)) || s.Chunks[seen.index].Device != seen.device || seen.version > s.Version {
		return nil
	}
	bit := uint32(1) << seen.index
	if !seen.parity {
		return QueueRepair(t, s, bit)
	}
	if s.Scheme.IsCopies() || seen.index < uint32(s.Scheme.K) {
		return nil // data chunks are right by definition
	}
	return queueRecode(t, s, 0, bit)
}
