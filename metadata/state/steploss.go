package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// A committed checkpoint that has lost bytes is no good to a restore: the links and
// ResolveStep pass it over, and it is called lost. Its record keeps one place where bytes
// are lost.
//
// Stripes do not say which files use them. So the leader looks for such checkpoints: it
// reads the extents of all committed ones after a stripe was lost or found (FindStepLoss),
// and proposes what it found (JudgeSteps). The command looks at the place itself before it
// calls a checkpoint lost. That nothing of a checkpoint is lost any more needs a look at
// every extent, too much for one command: the command believes the leader, unless a stripe
// was lost or found since the leader began to look (cLossChanges).

// MaxJudged is the most checkpoints that one JudgeSteps names.
const MaxJudged = 32

// lossChanged notes that a stripe or a file was lost, or found again.
func (t *tx) lossChanged() { t.count[record.CLossChanges]++ }

// extentLost reports whether the bytes of an extent of a file are nowhere: too few chunks of
// its stripe are left, and no object has them.
func (v *view) extentLost(i *record.Inode, e moraine.Extent) (bool, error) {
	if e.Object != 0 {
		return v.isBad(e.Object)
	}
	if i.Level > moraine.NVMe {
		if bad, err := v.isBad(i.Object); !bad || err != nil {
			return false, err
		}
	}
	item, err := v.repairOf(e.Stripe)
	if err != nil || item != nil && item.Lost() {
		return item != nil, err
	}
	if i.Level >= moraine.NVMe {
		return false, nil
	}
	fate, err := v.fateOf(e) // chunks in memory are gone before anybody judges their stripe
	return fate == record.LevelLost, err
}

// lossFrom returns the first lost place of a file from an offset on, having looked at no
// more than limit extents; next is where to go on, -1 where there is no more.
func (v *view) lossFrom(i *record.Inode, from int64, limit int) (at, next int64, looked int, err error) {
	exts, err := v.extentsOf(i, from, limit)
	if err != nil {
		return 0, 0, 0, err
	}
	for n, e := range exts {
		lost, err := v.extentLost(i, e)
		if err != nil {
			return 0, 0, 0, err
		}
		if lost {
			return e.Offset, 0, n + 1, nil
		}
	}
	if len(exts) == limit {
		return -1, exts[limit-1].End(), limit, nil
	}
	return -1, -1, len(exts), nil
}

// nameLoss says of a step that has lost bytes in which file.
func (v *view) nameLoss(s *record.Step, w *wire.Step) error {
	if !s.Lost() {
		return nil
	}
	i, err := v.inode(s.Loss.Inode)
	if moraineKind(err) == moraine.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if _, w.Loss.Name, err = v.nameOf(i); err != nil {
		return err
	}
	w.Reason = "bytes are lost, of " + w.Loss.Name + " at " + record.Utoa(w.Loss.Offset)
	return nil
}

// stepLostExtents bounds how many extents one ListLost of a step looks at, but for the rest
// of a file.
const stepLostExtents = 20_000

// readStepLost lists the files of a committed step that have lost bytes.
func (v *view) readStepLost(sc scope, op *wire.ListLost) (*wire.MetaResponse, error) {
	id := stepFromWire(op.GetStep())
	if _, _, err := v.runInScope(sc, "list lost", id.Run); err != nil {
		return nil, err
	}
	s, err := v.stepRecord(id)
	if err != nil {
		return nil, err
	}
	if s == nil || s.State != record.StepCommitted {
		return nil, fail(moraine.NotFound, "list lost", id.String(), "it is no committed checkpoint")
	}
	reply := &wire.LostReply{LastName: op.GetAfterName()}
	limit := listLimit(op.GetLimit())
	for looked := 0; ; {
		names, entries, err := v.listDir(s.Dir, reply.LastName, 1)
		if err != nil {
			return nil, err
		}
		if len(names) == 0 {
			break
		}
		if reply.More = looked >= stepLostExtents || len(reply.Files) == limit; reply.More {
			break
		}
		i, err := v.inode(entries[0].Inode)
		if err != nil {
			return nil, damaged(err)
		}
		f := &wire.LostFile{Inode: uint64(i.Id), Path: names[0]}
		n, err := v.lostRangesOf(f, i, v.extentLost)
		if err != nil {
			return nil, err
		}
		if len(f.Ranges) > 0 {
			reply.Files = append(reply.Files, f)
		}
		looked += n + 1
		reply.LastName = names[0]
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Lost{Lost: reply}}, nil
}

// judgeSteps records which checkpoints are lost, and which are not any more, and moves the
// links of their runs.
func (m *Machine) judgeSteps(t *tx, op *statepb.JudgeSteps) (*wire.MetaResponse, error) {
	if n := len(op.GetLost()) + len(op.GetFound()) + len(op.GetEvict()); n > MaxJudged {
		return nil, fail(moraine.TooLarge, "judge steps", "", "%d checkpoints, %d at most", n, MaxJudged)
	}
	t.ignoresQuota = true // a full quota keeps no link from moving
	for _, l := range op.GetLost() {
		loss := record.StepLoss{Inode: moraine.InodeID(l.GetAt().GetInode()), Offset: int64(l.GetAt().GetOffset())}
		if err := m.loseStep(t, stepFromWire(l.GetKey()), loss); err != nil {
			return nil, err
		}
	}
	for _, id := range op.GetEvict() {
		if err := m.evictLost(t, moraine.InodeID(id)); err != nil {
			return nil, err
		}
	}
	if op.GetChanges() != t.count[record.CLossChanges] {
		return done(), nil // the leader looks again
	}
	for _, w := range op.GetFound() {
		s, err := t.present(stepFromWire(w))
		if err != nil {
			return nil, err
		}
		if s == nil || !s.Lost() {
			continue
		}
		s.Loss = record.StepLoss{}
		t.count[record.CLostSteps]--
		if err := m.judged(t, s); err != nil {
			return nil, err
		}
	}
	return done(), nil
}

// evictLost has a file evicted that an object has whole.
func (m *Machine) evictLost(t *tx, id moraine.InodeID) error {
	i, err := t.inode(id)
	if moraineKind(err) == moraine.NotFound || err == nil && (!i.Sealed || i.Level <= moraine.NVMe) {
		return nil
	}
	if err == nil {
		_, err = m.queueInode(t, wire.JobKind_JOB_KIND_EVICT, i)
	}
	return err
}

// lostBeside reports whether stripes are lost of a file that an object has whole, looking at
// no more than limit extents from an offset on.
func (v *view) lostBeside(i *record.Inode, from int64, limit int) (bool, error) {
	if i.Level <= moraine.NVMe {
		return false, nil
	}
	if bad, err := v.isBad(i.Object); bad || err != nil {
		return false, err
	}
	exts, err := v.extentsOf(i, from, limit)
	if err != nil {
		return false, err
	}
	for _, e := range exts {
		if e.Object != 0 {
			continue
		}
		if item, err := v.repairOf(e.Stripe); err != nil || item != nil && item.Lost() {
			return err == nil, err
		}
	}
	return false, nil
}

// loseStep records that a checkpoint is lost, if the place is in one of its files, and lost.
func (m *Machine) loseStep(t *tx, id record.StepID, loss record.StepLoss) error {
	if known, err := t.stepRecord(id); err != nil || known == nil {
		return err
	}
	s, err := t.present(id)
	if err != nil || s == nil || s.Lost() {
		return err
	}
	is, err := t.lossIs(s, loss)
	if err != nil || !is {
		return err
	}
	s.Loss = loss
	t.count[record.CLostSteps]++
	return m.judged(t, s)
}

// lossIs reports whether a place is in a file of a step, and lost.
func (v *view) lossIs(s *record.Step, at record.StepLoss) (bool, error) {
	i, err := v.inode(at.Inode)
	if moraineKind(err) == moraine.NotFound {
		return false, nil
	}
	if err != nil || i.Parent != s.Dir || i.Typ != record.TypeFile {
		return false, err
	}
	where, _, looked, err := v.lossFrom(i, at.Offset, 1)
	return err == nil && looked > 0 && where >= 0, err
}

// judged writes a step that is lost, or is not any more, and has the links of its run
// follow in the same command.
func (m *Machine) judged(t *tx, s *record.Step) error {
	t.putStep(s)
	t.stepChanged(s.Id)
	r, err := t.runRecord(s.Id.Run)
	if err != nil {
		return err
	}
	dir, err := t.inode(moraine.InodeID(s.Id.Run))
	if err != nil || r == nil || dir.Nlink == 0 {
		if moraineKind(err) == moraine.NotFound {
			err = nil // the run goes, and its links with it
		}
		return err
	}
	if err := m.refreshStepLink(t, r, dir, s.Id.Step); err != nil {
		return err
	}
	return m.refreshLinks(t, r, dir)
}
