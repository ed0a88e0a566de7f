package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// MaxQueueMove is the most inodes of one QueueMove.
	MaxQueueMove = 256
	// busyKeyDelay is how long a job waits whose key another one changes, in
	// milliseconds of cluster time.
	busyKeyDelay = 2_000
)

// queueMove makes jobs that move files, or what is below directories.
func (m *Machine) queueMove(t *tx, op *wire.QueueMove) (*wire.MetaResponse, error) {
	if !record.OfFile(op.GetKind()) {
		return nil, fail(moraine.InvalidArgument, "queue move", op.GetKind().String(), "no kind of a move")
	}
	if len(op.GetInodes()) > MaxQueueMove {
		return nil, fail(moraine.TooLarge, "queue move", "", "%d files, %d at most", len(op.GetInodes()), MaxQueueMove)
	}
	reply := &wire.JobsReply{LeaseMillis: record.JobLeaseMillis}
	for _, id := range op.GetInodes() {
		i, err := t.named(moraine.InodeID(id))
		if err != nil {
			return nil, err
		}
		w, err := m.queueInode(t, op.GetKind(), i)
		if err != nil {
			return nil, err
		}
		reply.Jobs = append(reply.Jobs, w)
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Jobs{Jobs: reply}}, nil
}

// queueInode queues a move of one inode and returns its job; one without a
// number, ended, where there is nothing to do, or nothing that can be done.
func (m *Machine) queueInode(t *tx, kind wire.JobKind, i *record.Inode) (*wire.Job, error) {
	ended := &wire.Job{Kind: kind, State: wire.JobState_JOB_STATE_DONE, Inode: uint64(i.Id)}
	var id moraine.JobID
	var err error
	switch {
	case i.Nlink == 0 || i.Typ == record.TypeSymlink:
		return ended, nil
	case i.Typ == record.TypeDirectory:
		id, err = m.queueTree(t, kind, i)
	default:
		need, why, err := t.needs(kind, i)
		if err != nil {
			return nil, err
		}
		if !need {
			if why != "" {
				ended.State, ended.Error = wire.JobState_JOB_STATE_FAILED, why
			}
			return ended, nil
		}
		id, err = m.queueFile(t, kind, i, 0)
	}
	if err != nil {
		return nil, err
	}
	j, err := t.job(id)
	if err != nil {
		return nil, err
	}
	return j.ToWire(), nil
}

// needs reports whether a file is in need of a move, and, where it is not
// because that is impossible, why.
func (v *view) needs(kind wire.JobKind, i *record.Inode) (need bool, why string, err error) {
	switch kind {
	case wire.JobKind_JOB_KIND_FLUSH:
		if !i.Clean() {
			return true, "", nil
		}
		again, err := v.lostCopy(i)
		return again, "", err
	case wire.JobKind_JOB_KIND_STAGE:
		return i.Evicted > 0, "", nil
	}
	if i.Evicted == i.Size {
		return false, "", nil
	}
	if !i.Clean() {
		return false, "no object holds its present content: flush it first", nil
	}
	bad, err := v.isBad(i.Object)
	if bad {
		why = "the bucket does not have its object as it was recorded: flush it again first"
	}
	return !bad, why, err
}

// queueFile queues a move of a file, or finds the live job of that kind. A flush
// that is under way, or was and is tried again, is followed by another, since
// what it read may be older.
func (m *Machine) queueFile(t *tx, kind wire.JobKind, i *record.Inode, parent moraine.JobID) (moraine.JobID, error) {
	j, err := t.moveOf(i.Id, kind)
	if err != nil {
		return 0, err
	}
	if j == nil {
		_, name, err := t.nameOf(i)
		if err != nil {
			return 0, err
		}
		if name == "" {
			name = i.Id.String()
		}
		return m.addJob(t, jobSpec{kind: kind, subject: name, target: uint64(i.Id), parent: parent})
	}
	again := false
	if kind == wire.JobKind_JOB_KIND_FLUSH && !j.Again {
		in, err := t.objectIntent(j.Id) // what a holder before has completed is recorded, old or not
		if err != nil {
			return 0, err
		}
		again = in != nil || j.State == wire.JobState_JOB_STATE_RUNNING
	}
	if adopt := parent != 0 && j.Parent == 0; adopt || again {
		j.Again = j.Again || again
		if adopt {
			j.Parent = parent
		}
		t.putJob(j)
	}
	return j.Id, nil
}

// moveOf returns the live job of a kind for a file; nil where there is none.
func (v *view) moveOf(i moraine.InodeID, kind wire.JobKind) (*record.Job, error) {
	b, ok, err := v.r.Get(v.k.move(i, uint8(kind)))
	if err != nil || !ok {
		return nil, err
	}
	d := record.Dec{B: b}
	d.Version(record.JobVersion)
	id := moraine.JobID(d.Fixed64())
	if err := d.End("move"); err != nil {
		return nil, err
	}
	j, err := v.job(id)
	if err == nil && j == nil {
		err = &moraine.Error{Op: "move", Ref: id.String(), Kind: moraine.Corrupt}
	}
	return j, err
}

// countMoves keeps the index and the counters of live moves as a job begins to
// live (by is 1) or ends (-1).
func (t *tx) countMoves(j *record.Job, by int) {
	if !record.OfTier(j.Kind) {
		return
	}
	counter := map[wire.JobKind]record.Counter{
		wire.JobKind_JOB_KIND_FLUSH: record.CFlushes, wire.JobKind_JOB_KIND_STAGE: record.CStages,
		wire.JobKind_JOB_KIND_EVICT: record.CEvictions, wire.JobKind_JOB_KIND_DELETE_OBJECT: record.CDeletions,
	}[j.Kind]
	t.count[counter] += uint64(by)
	if !record.OfFile(j.Kind) {
		return
	}
	if j.Ending != 0 {
		return // it has left the index
	}
	t.indexMove(j, by)
}

// indexMove notes that a job is the one that moves its file (by is 1), or not
// any more (-1).
func (t *tx) indexMove(j *record.Job, by int) {
	t.count[record.CMoves] += uint64(by)
	key := t.k.move(moraine.InodeID(j.Target), uint8(j.Kind))
	if by > 0 {
		t.put(key, record.PutFixed64([]byte{1}, uint64(j.Id)))
	} else {
		t.del(key)
	}
}

// settleOut has a live job only settle what it announced, and then end so. What
// is queued for its file from now on is another job's.
func (t *tx) settleOut(j *record.Job, ending wire.JobState) {
	if j.Ending == 0 && record.OfFile(j.Kind) {
		t.indexMove(j, -1)
	}
	j.Ending = ending
}

// forgetMoves ends the jobs of a file that dies, as far as nobody holds them and
// nothing has to be settled first: the others find it gone.
func (m *Machine) forgetMoves(t *tx, i *record.Inode) error {
	if i.Typ != record.TypeFile || t.count[record.CMoves] == 0 {
		return nil
	}
	for _, kind := range []wire.JobKind{wire.JobKind_JOB_KIND_FLUSH, wire.JobKind_JOB_KIND_STAGE, wire.JobKind_JOB_KIND_EVICT} {
		j, err := t.moveOf(i.Id, kind)
		if err != nil {
			return err
		}
		if j == nil || j.State != wire.JobState_JOB_STATE_PENDING {
			continue
		}
		in, err := t.objectIntent(j.Id)
		if err != nil {
			return err
		}
		if in != nil {
			continue
		}
		if err := m.endJob(t, j, wire.JobState_JOB_STATE_DONE, ""); err != nil {
			return err
		}
	}
	return nil
}

// putOff has a live job wait until a cluster time.
func (m *Machine) putOff(t *tx, j *record.Job, until uint64) {
	t.unindexJob(j)
	j.State, j.Holder, j.Until, j.After = wire.JobState_JOB_STATE_PENDING, "", 0, until
	t.put(t.k.jobReady(uint8(j.Kind), j.After, j.Id), []byte{1})
	t.putJob(j)
}

// finishMove ends a job of the object tier, or has it tried again. While an
// intent of its is not settled it cannot end: it is leased again, to settle it.
func (m *Machine) finishMove(t *tx, j *record.Job, op *wire.FinishJob) error {
	in, err := t.objectIntent(j.Id)
	if err != nil {
		return err
	}
	if op.GetError() == "" {
		if in != nil {
			return fail(moraine.Conflict, "finish job", j.Id.String(), "what it announced is not settled")
		}
		return m.endMove(t, j)
	}
	j.Err = record.Clip(op.GetError(), moraine.MaxNameLen)
	j.Tries++
	giveUp := op.GetFinal() || (j.Tries >= record.MaxJobTries && (j.Kind == wire.JobKind_JOB_KIND_STAGE || j.Kind == wire.JobKind_JOB_KIND_EVICT))
	if giveUp && j.Ending == 0 {
		t.settleOut(j, wire.JobState_JOB_STATE_FAILED)
	}
	switch {
	case in != nil && in.Kind != wire.IntentKind_INTENT_KIND_UPLOAD:
		until, err := m.loseIntent(t, in, j.Until)
		if err != nil {
			return err
		}
		if j.Ending == 0 {
			m.putOff(t, j, until)
			return nil
		}
	case in != nil:
		m.retryJob(t, j)
		return nil
	}
	if j.Ending != 0 {
		return m.endJob(t, j, j.Ending, j.Err)
	}
	m.retryJob(t, j)
	return nil
}

// endMove ends a job whose holder is done. A flush that made no object, or
// during which the file was changed by what wants it flushed, is followed by
// another.
func (m *Machine) endMove(t *tx, j *record.Job) error {
	end := wire.JobState_JOB_STATE_DONE
	if j.Ending != 0 {
		end = j.Ending
	}
	if j.Kind == wire.JobKind_JOB_KIND_DELETE_OBJECT && end == wire.JobState_JOB_STATE_DONE {
		if o, err := t.object(moraine.ObjectID(j.Target)); err != nil || o != nil {
			if err == nil {
				m.retryJob(t, j) // it was elsewhere for a moment, and is to go all the same
			}
			return err
		}
	}
	stale := j.Kind == wire.JobKind_JOB_KIND_FLUSH && end == wire.JobState_JOB_STATE_DONE && (j.Again || !j.Made)
	parent := j.Parent
	if stale {
		j.Parent = 0 // goes to its successor
	}
	if err := m.endJob(t, j, end, j.Err); err != nil || !stale {
		return err
	}
	i, err := t.inode(moraine.InodeID(j.Target))
	switch {
	case moraineKind(err) == moraine.NotFound:
		i, err = nil, nil
	case err != nil:
		return err
	}
	if i != nil && i.Nlink > 0 && !i.Clean() {
		_, err = m.queueFile(t, wire.JobKind_JOB_KIND_FLUSH, i, parent)
		return err
	}
	return m.childEnded(t, parent, "")
}

// cancelMove cancels a job of the object tier. One with an upload under way is
// leased once more, to abort it.
func (m *Machine) cancelMove(t *tx, j *record.Job, reason string) error {
	in, err := t.objectIntent(j.Id)
	if err != nil {
		return err
	}
	if in == nil {
		return m.endJob(t, j, wire.JobState_JOB_STATE_CANCELED, reason)
	}
	until := max(j.Until, t.clusterTime()) // its holder may write as long as its lease is
	if in.Kind != wire.IntentKind_INTENT_KIND_UPLOAD {
		if _, err := m.loseIntent(t, in, j.Until); err != nil {
			return err
		}
		return m.endJob(t, j, wire.JobState_JOB_STATE_CANCELED, reason)
	}
	t.settleOut(j, wire.JobState_JOB_STATE_CANCELED)
	j.Err = reason
	if j.State == wire.JobState_JOB_STATE_RUNNING {
		m.putOff(t, j, until)
	} else {
		t.putJob(j)
	}
	return nil
}
