package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// The repair queue has one item for each stripe that is below full protection,
// or about to be: it stays until the stripe is sound again or dead. Items that
// no job works on stand in order, least redundancy first.

// MaxRepairStripes is the most stripes of one repair job.
const MaxRepairStripes = 32

// repairPause is how long an item waits after its last failure.
func (t *tx) repairPause(i *record.RepairItem) (uint64, error) {
	lasting, err := t.speaks(LevelUnrecoverable)
	if err == nil && lasting && i.Lost() {
		return record.BackoffTo(i.Tries, record.MaxLostBackoff), nil
	}
	return backoff(i.Tries), err
}

// repairOf returns a stripe's item on the queue; nil where there is none.
func (v *view) repairOf(id moraine.StripeID) (*record.RepairItem, error) {
	b, ok, err := v.r.Get(v.k.repairStripe(id))
	if err != nil || !ok {
		return nil, err
	}
	i := &record.RepairItem{Stripe: id}
	return i, i.Decode(b)
}

// countRepair keeps the counters of the queue: by is 1 for an item that comes
// and -1 for one that goes.
func (t *tx) countRepair(i *record.RepairItem, by int) {
	bump := func(c record.Counter) { t.count[c] += uint64(by) }
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

// putRepair writes an item; old is what the queue had, nil if nothing.
func (t *tx) putRepair(old *record.RepairItem, i *record.RepairItem) {
	if i.Lost() != (old != nil && old.Lost()) {
		t.lossChanged()
	}
	if old != nil {
		t.countRepair(old, -1)
		if old.Job == 0 && (i.Job != 0 || i.Spare != old.Spare) {
			t.del(t.k.repair(old.Spare, old.Stripe))
		}
	}
	t.countRepair(i, 1)
	if i.Job == 0 {
		t.put(t.k.repair(i.Spare, i.Stripe), []byte{record.RepairVersion})
		t.events.RepairsQueued = true
	}
	t.put(t.k.repairStripe(i.Stripe), i.Encode())
}

func (t *tx) delRepair(i *record.RepairItem) {
	if i.Lost() {
		t.lossChanged()
	}
	t.countRepair(i, -1)
	if i.Job == 0 {
		t.del(t.k.repair(i.Spare, i.Stripe))
	}
	t.del(t.k.repairStripe(i.Stripe))
}

// queueRepair judges a stripe and puts it on the queue, moves it, or takes it
// off, as it is found. bad adds to the chunks known to be bad. What a job works
// on stays until the job lets go of it.
func (m *Machine) queueRepair(t *tx, s *moraine.Stripe, bad uint32) error {
	return m.queueRecode(t, s, bad, 0)
}

// queueRecode is queueRepair; recode are those of the bad chunks that are parity to be encoded
// again.
func (m *Machine) queueRecode(t *tx, s *moraine.Stripe, bad, recode uint32) error {
	old, err := t.repairOf(s.ID)
	if err != nil {
		return err
	}
	item := record.RepairItem{Stripe: s.ID, Since: t.clusterTime()}
	if old != nil {
		item = *old
	}
	item.Bad |= bad | recode
	item.Recode |= recode
	h, err := t.healthOf(s, item.Bad)
	if err != nil {
		return err
	}
	if h.sound(s) && item.Job == 0 {
		if old != nil {
			t.delRepair(old)
		}
		return nil
	}
	if item.Balance && !h.sound(s) {
		if err := m.unbalance(t, s, &item); err != nil {
			return err
		}
	}
	item.Spare = h.spare()
	if old != nil && old.Lost() && !h.lost {
		// It waits for what was in vain before.
		if ok, err := t.speaks(LevelUnrecoverable); err != nil {
			return err
		} else if ok {
			item.Tries, item.After = 0, 0
		}
	}
	if old == nil || *old != item {
		t.putRepair(old, &item)
	}
	return nil
}

// dropRepair takes a stripe that dies off the queue. The intents of the job
// that works on it end with the job.
func (m *Machine) dropRepair(t *tx, s *moraine.Stripe) error {
	i, err := t.repairOf(s.ID)
	if err == nil && i != nil {
		t.delRepair(i)
	}
	return err
}

// releaseRepairs lets go of the stripes that a repair job worked on: its
// intents end, and what is not sound yet waits again, for longer where the job
// failed.
func (m *Machine) releaseRepairs(t *tx, j *record.Job, failed bool) error {
	for _, id := range j.Stripes {
		if err := m.endStripeIntents(t, j.Id, id); err != nil {
			return err
		}
		old, err := t.repairOf(id)
		if err != nil {
			return err
		}
		if old == nil || old.Job != j.Id {
			continue
		}
		s, err := t.stripe(id)
		if err != nil {
			return err
		}
		if s == nil {
			return &moraine.Error{Op: "release repair", Ref: id.String(), Kind: moraine.Corrupt}
		}
		item := *old
		if item.Balance { // nothing was wrong with it, or the job would have lost it
			t.delRepair(old)
			continue
		}
		item.Job = 0
		if failed {
			item.Tries++
			pause, err := t.repairPause(&item)
			if err != nil {
				return err
			}
			item.After = t.clusterTime() + pause
		}
		t.putRepair(old, &item)
		if err := m.queueRepair(t, s, 0); err != nil {
			return err
		}
	}
	return nil
}

// createJobs makes the jobs that the leader decides on: repairs, moves that fill
// devices evenly, and what rewrites stripes that are mostly dead. A repair takes
// those of its stripes that wait on the queue, with the intents that it names;
// a job that would have none is not made.
func (m *Machine) createJobs(t *tx, op *statepb.CreateJobs) (*wire.MetaResponse, error) {
	reply := &wire.JobsReply{LeaseMillis: record.JobLeaseMillis}
	for _, w := range op.GetJobs() {
		if w.GetKind() == wire.JobKind_JOB_KIND_REWRITE {
			j, err := m.createRewrite(t, w)
			if err != nil {
				return nil, err
			}
			if j != nil {
				reply.Jobs = append(reply.Jobs, j)
			}
			continue
		}
		if !record.OfStripes(w.GetKind()) {
			return nil, fail(moraine.InvalidArgument, "create jobs", w.GetKind().String(), "jobs of this kind are made by what needs them")
		}
		if len(w.GetRepairs()) > MaxRepairStripes {
			return nil, fail(moraine.TooLarge, "create jobs", "", "%d stripes, %d at most", len(w.GetRepairs()), MaxRepairStripes)
		}
		create := m.createRepair
		if w.GetKind() == wire.JobKind_JOB_KIND_REBALANCE {
			create = m.createRebalance
		}
		j, err := create(t, w)
		if err != nil {
			return nil, err
		}
		if j != nil {
			reply.Jobs = append(reply.Jobs, j)
		}
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Jobs{Jobs: reply}}, nil
}

func (m *Machine) createRepair(t *tx, w *wire.Job) (*wire.Job, error) {
	var claimed []stripeClaim
	var intents []*wire.Intent
	for _, task := range w.GetRepairs() {
		item, err := t.repairOf(moraine.StripeID(task.GetStripe().GetId()))
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
	return m.createStripeJob(t, w, claimed, intents)
}

// stripeClaim is an item of the queue that a new job takes; old is what the queue had,
// nil if nothing.
type stripeClaim struct{ old, item *record.RepairItem }

// createStripeJob makes a job of what was claimed for it, nil where that is nothing.
func (m *Machine) createStripeJob(t *tx, w *wire.Job, claimed []stripeClaim, intents []*wire.Intent) (*wire.Job, error) {
	if len(claimed) == 0 {
		return nil, nil
	}
	spec := jobSpec{kind: w.GetKind(), subject: record.Clip(w.GetSubject(), moraine.MaxNameLen), total: uint64(len(claimed))}
	if spec.subject == "" {
		spec.subject = record.Utoa(uint64(len(claimed))) + " stripes"
	}
	for _, c := range claimed {
		spec.stripes = append(spec.stripes, c.item.Stripe)
	}
	id, err := m.addJob(t, spec)
	if err != nil {
		return nil, err
	}
	for _, c := range claimed {
		c.item.Job = id
		t.putRepair(c.old, c.item)
	}
	j, err := t.job(id)
	if err != nil {
		return nil, err
	}
	for _, in := range intents {
		// An intent that cannot be (its device went out meanwhile) is left out:
		// the holder asks for another.
		if _, err := m.recordIntent(t, j, in); err != nil && !isAnswer(err) {
			return nil, err
		}
	}
	reply := j.ToWire()
	reply.Repairs, err = t.repairTasks(j)
	return reply, err
}

// repairTasks returns a job's stripes as they are, with the intents recorded.
func (v *view) repairTasks(j *record.Job) ([]*wire.RepairTask, error) {
	var out []*wire.RepairTask
	for _, id := range j.Stripes {
		item, err := v.repairOf(id)
		if err != nil {
			return nil, err
		}
		if item == nil || item.Job != j.Id {
			continue // it died
		}
		task, err := v.repairTask(item)
		if err != nil {
			return nil, err
		}
		out = append(out, task)
	}
	return out, nil
}

func (v *view) repairTask(item *record.RepairItem) (*wire.RepairTask, error) {
	s, err := v.stripe(item.Stripe)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return nil, &moraine.Error{Op: "repair queue", Ref: item.Stripe.String(), Kind: moraine.Corrupt}
	}
	h, err := v.healthOf(s, item.Bad)
	if err != nil {
		return nil, err
	}
	task := &wire.RepairTask{Stripe: wire.StripeToWire(s), Reason: h.reason(), Missing: h.missing, Moving: h.moving, Recode: item.Recode}
	if item.Balance {
		task.Reason = "balance"
	}
	for i := range s.Chunks {
		in, err := v.intent(moraine.ChunkID{Stripe: s.ID, Index: uint8(i)})
		if err != nil {
			return nil, err
		}
		if in != nil {
			task.Intents = append(task.Intents, in.ToWire())
		}
	}
	return task, nil
}

// queueRepairs takes up what the leader was told: chunks that are lost,
// corrupt or stale.
func (m *Machine) queueRepairs(t *tx, op *statepb.QueueRepairs) (*wire.MetaResponse, error) {
	for _, w := range op.GetItems() {
		seen := seenChunk{index: w.GetIndex(), device: moraine.DeviceID(w.GetDevice()), version: moraine.LayoutVersion(w.GetVersion())}
		if err := m.badChunk(t, moraine.StripeID(w.GetStripe()), seen); err != nil {
			return nil, err
		}
	}
	return done(), nil
}

// reportBadChunks takes up what a reader met.
func (m *Machine) reportBadChunks(t *tx, op *wire.ReportBadChunks) (*wire.MetaResponse, error) {
	if len(op.GetChunks()) > maxBadChunks {
		return nil, fail(moraine.TooLarge, "report bad chunks", "", "%d chunks, %d at most", len(op.GetChunks()), maxBadChunks)
	}
	for _, w := range op.GetChunks() {
		switch moraine.Kind(min(w.GetKind(), 255)) {
		case moraine.NotFound, moraine.Corrupt, moraine.Stale, moraine.Lost:
		default:
			continue // a host that does not answer is not a chunk that is gone
		}
		past, err := t.outdatedReport(w)
		if err == nil && !past {
			past, err = t.foreign(w)
		}
		if err != nil {
			return nil, err
		}
		if past {
			continue
		}
		seen := seenChunk{index: w.GetIndex(), device: moraine.DeviceID(w.GetDevice()), version: moraine.LayoutVersion(w.GetVersion()), parity: w.GetParity()}
		if err := m.badChunk(t, moraine.StripeID(w.GetStripe()), seen); err != nil {
			return nil, err
		}
	}
	return done(), nil
}

// foreign reports whether the caller is confined to a tree of another tenant than that of
// the stripe that it speaks of: it cannot have read it.
func (t *tx) foreign(w *wire.BadChunk) (bool, error) {
	if t.scope.root == t.k.top() {
		return false, nil
	}
	if ok, err := t.speaks(LevelUnrecoverable); err != nil || !ok {
		return false, err
	}
	s, err := t.stripe(moraine.StripeID(w.GetStripe()))
	if err != nil || s == nil {
		return false, err
	}
	root, err := t.inode(t.scope.root)
	return err == nil && root.Tenant != s.Tenant, err
}

// outdatedReport reports whether a chunk was told of by a record that is not the stripe's any
// more, and is to be passed over then: it may have been rebuilt in its place since.
func (t *tx) outdatedReport(w *wire.BadChunk) (bool, error) {
	if !w.GetAtVersion() {
		return false, nil
	}
	if ok, err := t.speaks(levelReportedAt); err != nil || !ok {
		return false, err
	}
	s, err := t.stripe(moraine.StripeID(w.GetStripe()))
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

// badChunk queues the repair of a stripe with a bad chunk, if the chunk is
// still where it was seen.
func (m *Machine) badChunk(t *tx, id moraine.StripeID, seen seenChunk) error {
	s, err := t.stripe(id)
	if err != nil || s == nil {
		return err
	}
	if seen.index >= uint32(len(s.Chunks)) || s.Chunks[seen.index].Device != seen.device || seen.version > s.Version {
		return nil
	}
	bit := uint32(1) << seen.index
	if !seen.parity {
		return m.queueRepair(t, s, bit)
	}
	if s.Scheme.IsCopies() || seen.index < uint32(s.Scheme.K) {
		return nil // data is what was written
	}
	return m.queueRecode(t, s, 0, bit)
}
