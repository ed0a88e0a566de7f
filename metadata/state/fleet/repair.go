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

// The repair queue has one item for each stripe that is below full protection,
// or about to be: it stays until the stripe is sound again or dead. Items that
// no job works on stand in order, least redundancy first.

// MaxRepairStripes is the most stripes of one repair job.
const MaxRepairStripes = 32

// RepairPause is how long an item waits after its last failure.
func RepairPause(t *kvtx.Tx, i *record.RepairItem) (uint64, error) {
	lasting, err := t.Speaks(kvtx.LevelUnrecoverable)
	if err == nil && lasting && i.Lost() {
		return record.BackoffTo(i.Tries, record.MaxLostBackoff), nil
	}
	return jobs.Backoff(i.Tries), err
}

// RepairOf returns a stripe's item on the queue; nil where there is none.
func RepairOf(v *kvtx.View, id moraine.StripeID) (*record.RepairItem, error) {
	b, ok, err := v.R.Get(v.K.RepairStripe(id))
	if err != nil || !ok {
		return nil, err
	}
	i := &record.RepairItem{Stripe: id}
	return i, i.Decode(b)
}

// CountRepair keeps the counters of the queue: by is 1 for an item that comes
// and -1 for one that goes.
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

// PutRepair writes an item; old is what the queue had, nil if nothing.
func PutRepair(t *kvtx.Tx, old *record.RepairItem, i *record.RepairItem) {
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

func DelRepair(t *kvtx.Tx, i *record.RepairItem) {
	if i.Lost() {
		t.LossChanged()
	}
	CountRepair(t, i, -1)
	if i.Job == 0 {
		t.Del(t.K.Repair(i.Spare, i.Stripe))
	}
	t.Del(t.K.RepairStripe(i.Stripe))
}

// QueueRepair judges a stripe and puts it on the queue, moves it, or takes it
// off, as it is found. bad adds to the chunks known to be bad. What a job works
// on stays until the job lets go of it.
func QueueRepair(t *kvtx.Tx, s *moraine.Stripe, bad uint32) error {
	return QueueRecode(t, s, bad, 0)
}

// QueueRecode is queueRepair; recode are those of the bad chunks that are parity to be encoded
// again.
func QueueRecode(t *kvtx.Tx, s *moraine.Stripe, bad, recode uint32) error {
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
			DelRepair(t, old)
		}
		return nil
	}
	if item.Balance && !h.Sound(s) {
		if err := Unbalance(t, s, &item); err != nil {
			return err
		}
	}
	item.Spare = h.spare()
	if old != nil && old.Lost() && !h.lost {
		// It waits for what was in vain before.
		if ok, err := t.Speaks(kvtx.LevelUnrecoverable); err != nil {
			return err
		} else if ok {
			item.Tries, item.After = 0, 0
		}
	}
	if old == nil || *old != item {
		PutRepair(t, old, &item)
	}
	return nil
}

// DropRepair takes a stripe that dies off the queue. The intents of the job
// that works on it end with the job.
func DropRepair(t *kvtx.Tx, s *moraine.Stripe) error {
	i, err := RepairOf(&t.View, s.ID)
	if err == nil && i != nil {
		DelRepair(t, i)
	}
	return err
}

// ReleaseRepairs lets go of the stripes that a repair job worked on: its
// intents end, and what is not sound yet waits again, for longer where the job
// failed.
func ReleaseRepairs(t *kvtx.Tx, j *record.Job, failed bool) error {
	for _, id := range j.Stripes {
		if err := EndStripeIntents(t, j.Id, id); err != nil {
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
			return &moraine.Error{Op: "release repair", Ref: id.String(), Kind: moraine.Corrupt}
		}
		item := *old
		if item.Balance { // nothing was wrong with it, or the job would have lost it
			DelRepair(t, old)
			continue
		}
		item.Job = 0
		if failed {
			item.Tries++
			pause, err := RepairPause(t, &item)
			if err != nil {
				return err
			}
			item.After = t.ClusterTime() + pause
		}
		PutRepair(t, old, &item)
		if err := QueueRepair(t, s, 0); err != nil {
			return err
		}
	}
	return nil
}

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
	return CreateStripeJob(t, w, claimed, intents)
}

// stripeClaim is an item of the queue that a new job takes; old is what the queue had,
// nil if nothing.
type stripeClaim struct{ old, item *record.RepairItem }

// CreateStripeJob makes a job of what was claimed for it, nil where that is nothing.
func CreateStripeJob(t *kvtx.Tx, w *wire.Job, claimed []stripeClaim, intents []*wire.Intent) (*wire.Job, error) {
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
		PutRepair(t, c.old, c.item)
	}
	j, err := jobs.Job(&t.View, id)
	if err != nil {
		return nil, err
	}
	for _, in := range intents {
		// An intent that cannot be (its device went out meanwhile) is left out:
		// the holder asks for another.
		if _, err := RecordIntent(t, j, in); err != nil && !kvtx.IsAnswer(err) {
			return nil, err
		}
	}
	reply := j.ToWire()
	reply.Repairs, err = RepairTasks(&t.View, j)
	return reply, err
}

// RepairTasks returns a job's stripes as they are, with the intents recorded.
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
		task, err := RepairTask(v, item)
		if err != nil {
			return nil, err
		}
		out = append(out, task)
	}
	return out, nil
}

func RepairTask(v *kvtx.View, item *record.RepairItem) (*wire.RepairTask, error) {
	s, err := Stripe(v, item.Stripe)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return nil, &moraine.Error{Op: "repair queue", Ref: item.Stripe.String(), Kind: moraine.Corrupt}
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
		in, err := ReadIntent(v, moraine.ChunkID{Stripe: s.ID, Index: uint8(i)})
		if err != nil {
			return nil, err
		}
		if in != nil {
			task.Intents = append(task.Intents, in.ToWire())
		}
	}
	return task, nil
}

// QueueRepairs takes up what the leader was told: chunks that are lost,
// corrupt or stale.
func QueueRepairs(t *kvtx.Tx, op *statepb.QueueRepairs) (*wire.MetaResponse, error) {
	for _, w := range op.GetItems() {
		seen := seenChunk{index: w.GetIndex(), device: moraine.DeviceID(w.GetDevice()), version: moraine.LayoutVersion(w.GetVersion())}
		if err := BadChunk(t, moraine.StripeID(w.GetStripe()), seen); err != nil {
			return nil, err
		}
	}
	return kvtx.Done(), nil
}

// ReportBadChunks takes up what a reader met.
func ReportBadChunks(t *kvtx.Tx, op *wire.ReportBadChunks) (*wire.MetaResponse, error) {
	if len(op.GetChunks()) > maxBadChunks {
		return nil, kvtx.Fail(moraine.TooLarge, "report bad chunks", "", "%d chunks, %d at most", len(op.GetChunks()), maxBadChunks)
	}
	for _, w := range op.GetChunks() {
		switch moraine.Kind(min(w.GetKind(), 255)) {
		case moraine.NotFound, moraine.Corrupt, moraine.Stale, moraine.Lost:
		default:
			continue // a host that does not answer is not a chunk that is gone
		}
		past, err := OutdatedReport(t, w)
		if err == nil && !past {
			past, err = Foreign(t, w)
		}
		if err != nil {
			return nil, err
		}
		if past {
			continue
		}
		seen := seenChunk{index: w.GetIndex(), device: moraine.DeviceID(w.GetDevice()), version: moraine.LayoutVersion(w.GetVersion()), parity: w.GetParity()}
		if err := BadChunk(t, moraine.StripeID(w.GetStripe()), seen); err != nil {
			return nil, err
		}
	}
	return kvtx.Done(), nil
}

// Foreign reports whether the caller is confined to a tree of another tenant than that of
// the stripe that it speaks of: it cannot have read it.
func Foreign(t *kvtx.Tx, w *wire.BadChunk) (bool, error) {
	if t.Scope.Root == t.K.Top() {
		return false, nil
	}
	if ok, err := t.Speaks(kvtx.LevelUnrecoverable); err != nil || !ok {
		return false, err
	}
	s, err := Stripe(&t.View, moraine.StripeID(w.GetStripe()))
	if err != nil || s == nil {
		return false, err
	}
	root, err := tree.Inode(t, t.Scope.Root)
	return err == nil && root.Tenant != s.Tenant, err
}

// OutdatedReport reports whether a chunk was told of by a record that is not the stripe's any
// more, and is to be passed over then: it may have been rebuilt in its place since.
func OutdatedReport(t *kvtx.Tx, w *wire.BadChunk) (bool, error) {
	if !w.GetAtVersion() {
		return false, nil
	}
	if ok, err := t.Speaks(kvtx.LevelReportedAt); err != nil || !ok {
		return false, err
	}
	s, err := Stripe(&t.View, moraine.StripeID(w.GetStripe()))
	return s == nil || s.Version != moraine.LayoutVersion(w.GetVersion()), err
}

// maxBadChunks is the most chunks of one report.
const maxBadChunks = 256

// seenChunk is a bad chunk as it was met.
type seenChunk struct {
	index   uint32
	device  moraine.DeviceID
	version moraine.LayoutVersion // 0: of any
	parity  bool                  // it has its recorded sum, and is not the parity of the data
}

// BadChunk queues the repair of a stripe with a bad chunk, if the chunk is
// still where it was seen.
func BadChunk(t *kvtx.Tx, id moraine.StripeID, seen seenChunk) error {
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
		return nil // data is what was written
	}
	return QueueRecode(t, s, 0, bit)
}
