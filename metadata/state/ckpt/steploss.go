package ckpt

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/content"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/tier"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// A committed checkpoint with lost bytes is useless for a restore. The links and ResolveStep skip
// it, and its state is shown as lost. Its record has one place where bytes are lost.
//
// Stripes do not say which files use them, so the leader searches for lost checkpoints. After a
// stripe was lost or found, it reads the extents of all committed checkpoints (FindStepLoss) and
// proposes its findings (JudgeSteps). The command verifies the place itself before it marks a
// checkpoint as lost. To verify that nothing is lost any more would need every extent, too much for
// one command. For that the command trusts the leader, unless a stripe was lost or found since the
// leader's inspection began (CLossChanges).

// maxJudged is the largest number of checkpoints in one JudgeSteps.
const maxJudged = 32

// extentLost reports whether the bytes of an extent exist nowhere: too few chunks of its stripe are
// left, and no object has them.
func extentLost(v *kvtx.View, i *record.Inode, e moraine.Extent) (bool, error) {
	if e.Object != 0 {
		return tier.IsBad(v, e.Object)
	}
	if e.Inline != 0 {
		return false, nil
	}
	if i.Level > moraine.NVMe {
		if bad, err := tier.IsBad(v, i.Object); !bad || err != nil {
			return false, err
		}
	}
	item, err := fleet.RepairOf(v, e.Stripe)
	if err != nil || item != nil && item.Lost() {
		return item != nil, err
	}
	if i.Level >= moraine.NVMe {
		return false, nil
	}
	fate, err := content.FateOf(v, e) // chunks in memory are gone before the leader scans their stripe
	return fate == record.LevelLost, err
}

// lossFrom returns the first lost place of a file from an offset on. It inspects at most limit
// extents; next is where to continue, -1 if there is nothing more.
func lossFrom(v *kvtx.View, i *record.Inode, from int64, limit int) (at, next int64, looked int, err error) {
	exts, err := layout.ExtentsOf(v, i, from, limit)
	if err != nil {
		return 0, 0, 0, err
	}
	for n, e := range exts {
		lost, err := extentLost(v, i, e)
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

// nameLoss adds to a step's wire form which file has lost bytes.
func nameLoss(v *kvtx.View, s *record.Step, w *wire.Step) error {
	if !s.Lost() {
		return nil
	}
	i, err := tree.ReadInode(v, s.Loss.Inode)
	if kvtx.MoraineKind(err) == moraine.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	w.Loss.Name = i.Name
	w.Reason = "bytes are lost, of " + w.Loss.Name + " at " + record.Utoa(w.Loss.Offset)
	return nil
}

// stepLostExtents bounds the extents that one ListLost of a step inspects; it still completes the
// current file.
const stepLostExtents = 20_000

// readStepLost lists the files of a committed step that have lost bytes.
func readStepLost(v *kvtx.View, sc kvtx.Scope, op *wire.ListLost) (*wire.MetaResponse, error) {
	id := stepFromWire(op.GetStep())
	if _, _, err := runInScope(v, sc, "list lost", id.Run); err != nil {
		return nil, err
	}
	s, err := tree.StepRecord(v, id)
	if err != nil {
		return nil, err
	}
	if s == nil || s.State != record.StepCommitted {
		return nil, kvtx.Fail(moraine.NotFound, "list lost", id.String(), "the step does not exist or is not committed")
	}
	reply := &wire.LostReply{LastName: op.GetAfterName()}
	limit := tree.ListLimit(op.GetLimit())
	for looked := 0; ; {
		names, entries, err := tree.ListDir(v, s.Dir, reply.LastName, 1)
		if err != nil {
			return nil, err
		}
		if len(names) == 0 {
			break
		}
		if reply.More = looked >= stepLostExtents || len(reply.Files) == limit; reply.More {
			break
		}
		i, err := tree.ReadInode(v, entries[0].Inode)
		if err != nil {
			return nil, kvtx.Damaged(err)
		}
		f := &wire.LostFile{Inode: uint64(i.Id), Path: names[0]}
		n, err := content.LostRangesOf(v, f, i, func(i *record.Inode, e moraine.Extent) (bool, error) { return extentLost(v, i, e) })
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

// JudgeSteps records which checkpoints are lost, and which no longer are, and moves the links of
// their runs.
func JudgeSteps(t *kvtx.Tx, op *statepb.JudgeSteps) (*wire.MetaResponse, error) {
	if n := len(op.GetLost()) + len(op.GetFound()) + len(op.GetEvict()); n > maxJudged {
		return nil, kvtx.Fail(moraine.TooLarge, "judge steps", "", "the command has %d steps, %d at most", n, maxJudged)
	}
	t.IgnoresQuota = true // a full quota must not prevent links from moving
	for _, l := range op.GetLost() {
		loss := record.StepLoss{Inode: moraine.InodeID(l.GetAt().GetInode()), Offset: int64(l.GetAt().GetOffset())}
		if err := loseStep(t, stepFromWire(l.GetKey()), loss); err != nil {
			return nil, err
		}
	}
	for _, id := range op.GetEvict() {
		if err := evictLost(t, moraine.InodeID(id)); err != nil {
			return nil, err
		}
	}
	if op.GetChanges() != t.Count[record.CLossChanges] {
		return kvtx.Done(), nil // the leader inspects again
	}
	for _, w := range op.GetFound() {
		s, err := present(&t.View, stepFromWire(w))
		if err != nil {
			return nil, err
		}
		if s == nil || !s.Lost() {
			continue
		}
		s.Loss = record.StepLoss{}
		t.Count[record.CLostSteps]--
		if err := judged(t, s); err != nil {
			return nil, err
		}
	}
	return kvtx.Done(), nil
}

// evictLost queues the eviction of a file that is whole in an object.
func evictLost(t *kvtx.Tx, id moraine.InodeID) error {
	i, err := tree.Inode(t, id)
	if kvtx.MoraineKind(err) == moraine.NotFound || err == nil && (!i.Sealed || i.Level <= moraine.NVMe) {
		return nil
	}
	if err == nil {
		_, err = tier.QueueInode(t, wire.JobKind_JOB_KIND_EVICT, i)
	}
	return err
}

// lostBeside reports whether a file that is whole in an object has lost stripes. It inspects at
// most limit extents from an offset on.
func lostBeside(v *kvtx.View, i *record.Inode, from int64, limit int) (bool, error) {
	if i.Level <= moraine.NVMe {
		return false, nil
	}
	if bad, err := tier.IsBad(v, i.Object); bad || err != nil {
		return false, err
	}
	exts, err := layout.ExtentsOf(v, i, from, limit)
	if err != nil {
		return false, err
	}
	for _, e := range exts {
		if e.Stripe == 0 {
			continue
		}
		if item, err := fleet.RepairOf(v, e.Stripe); err != nil || item != nil && item.Lost() {
			return err == nil, err
		}
	}
	return false, nil
}

// loseStep records that a checkpoint is lost, if the place is in one of its files and is lost.
func loseStep(t *kvtx.Tx, id record.StepID, loss record.StepLoss) error {
	if known, err := tree.StepRecord(&t.View, id); err != nil || known == nil {
		return err
	}
	s, err := present(&t.View, id)
	if err != nil || s == nil || s.Lost() {
		return err
	}
	is, err := lossIs(&t.View, s, loss)
	if err != nil || !is {
		return err
	}
	s.Loss = loss
	t.Count[record.CLostSteps]++
	return judged(t, s)
}

// lossIs reports whether a place is in a file of a step and is lost.
func lossIs(v *kvtx.View, s *record.Step, at record.StepLoss) (bool, error) {
	i, err := tree.ReadInode(v, at.Inode)
	if kvtx.MoraineKind(err) == moraine.NotFound {
		return false, nil
	}
	if err != nil || i.Parent != s.Dir || i.Typ != record.TypeFile {
		return false, err
	}
	where, _, looked, err := lossFrom(v, i, at.Offset, 1)
	return err == nil && looked > 0 && where >= 0, err
}

// judged writes a committed step that became lost or whole again, or has another level or mark. It updates the links
// of its run in the same command.
func judged(t *kvtx.Tx, s *record.Step) error {
	putStep(t, s)
	t.Put(t.K.RunCommit(s.Id), CommitRow(s))
	stepChanged(t, s.Id)
	r, err := tree.RunRecord(&t.View, s.Id.Run)
	if err != nil {
		return err
	}
	dir, err := tree.Inode(t, moraine.InodeID(s.Id.Run))
	if err != nil || r == nil || dir.Nlink == 0 {
		if kvtx.MoraineKind(err) == moraine.NotFound {
			err = nil // the run is being removed, with its links
		}
		return err
	}
	if err := refreshStepLink(t, r, dir, s.Id.Step); err != nil {
		return err
	}
	return refreshLinks(t, r, dir)
}

// ReadLost lists the files that have lost bytes.
func ReadLost(v *kvtx.View, sc kvtx.Scope, op *wire.ListLost) (*wire.MetaResponse, error) {
	if op.GetStep() != nil {
		return readStepLost(v, sc, op)
	}
	reply := &wire.LostReply{}
	limit := tree.ListLimit(op.GetLimit())
	for after := moraine.InodeID(op.GetAfter()); ; {
		rows, err := content.UnsafeFiles(v, after, tree.MaxListed)
		if err != nil {
			return nil, err
		}
		for _, id := range rows {
			f, err := content.LostFile(v, sc, id)
			if err != nil {
				return nil, err
			}
			if f == nil {
				continue
			}
			if len(reply.Files) == limit {
				reply.More = true
				return &wire.MetaResponse{Result: &wire.MetaResponse_Lost{Lost: reply}}, nil
			}
			reply.Files = append(reply.Files, f)
		}
		if len(rows) < tree.MaxListed {
			return &wire.MetaResponse{Result: &wire.MetaResponse_Lost{Lost: reply}}, nil
		}
		after = rows[len(rows)-1]
	}
}
