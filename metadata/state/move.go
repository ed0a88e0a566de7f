package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/objectkey"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// MaxQueueMove is the most inodes of one QueueMove.
	MaxQueueMove = 256
	// busyKeyDelay is how long a job waits whose key another one changes, in
	// milliseconds of cluster time.
	busyKeyDelay = 2_000
)

// ofFile reports whether jobs of a kind move one file to or from the object
// tier: of each kind a file has one live job at most.
func ofFile(kind wire.JobKind) bool {
	return kind == wire.JobKind_JOB_KIND_FLUSH || kind == wire.JobKind_JOB_KIND_STAGE || kind == wire.JobKind_JOB_KIND_EVICT
}

// ofTier reports whether only movers with a bucket lease jobs of a kind.
func ofTier(kind wire.JobKind) bool {
	return ofFile(kind) || kind == wire.JobKind_JOB_KIND_DELETE_OBJECT
}

// queueMove makes jobs that move files, or what is below directories.
func (m *Machine) queueMove(t *tx, op *wire.QueueMove) (*wire.MetaResponse, error) {
	if !ofFile(op.GetKind()) {
		return nil, fail(moraine.InvalidArgument, "queue move", op.GetKind().String(), "no kind of a move")
	}
	if len(op.GetInodes()) > MaxQueueMove {
		return nil, fail(moraine.TooLarge, "queue move", "", "%d files, %d at most", len(op.GetInodes()), MaxQueueMove)
	}
	reply := &wire.JobsReply{LeaseMillis: JobLeaseMillis}
	for _, id := range op.GetInodes() {
		i, err := t.inode(moraine.InodeID(id))
		if err != nil {
			return nil, err
		}
		if err := t.within(t.scope, i); err != nil {
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
func (m *Machine) queueInode(t *tx, kind wire.JobKind, i *inode) (*wire.Job, error) {
	ended := &wire.Job{Kind: kind, State: wire.JobState_JOB_STATE_DONE, Inode: uint64(i.id)}
	var id moraine.JobID
	var err error
	switch {
	case i.nlink == 0 || i.typ == typeSymlink:
		return ended, nil
	case i.typ == typeDirectory:
		id, err = m.queueTree(t, kind, i)
	default:
		if need, why := needs(kind, i); !need {
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
	return j.toWire(), nil
}

// needs reports whether a file is in need of a move, and, where it is not
// because that is impossible, why.
func needs(kind wire.JobKind, i *inode) (bool, string) {
	switch kind {
	case wire.JobKind_JOB_KIND_FLUSH:
		return !i.clean(), ""
	case wire.JobKind_JOB_KIND_STAGE:
		return i.evicted > 0, ""
	}
	if i.evicted == i.size {
		return false, ""
	}
	if !i.clean() {
		return false, "no object holds its present content: flush it first"
	}
	return true, ""
}

// queueFile queues a move of a file, or finds the live job of that kind. A flush
// that is under way, or was and is tried again, is followed by another, since
// what it read may be older.
func (m *Machine) queueFile(t *tx, kind wire.JobKind, i *inode, parent moraine.JobID) (moraine.JobID, error) {
	j, err := t.moveOf(i.id, kind)
	if err != nil {
		return 0, err
	}
	if j == nil {
		_, name, err := t.nameOf(i)
		if err != nil {
			return 0, err
		}
		if name == "" {
			name = i.id.String()
		}
		return m.addJob(t, jobSpec{kind: kind, subject: name, target: uint64(i.id), parent: parent})
	}
	again := false
	if kind == wire.JobKind_JOB_KIND_FLUSH && !j.again {
		in, err := t.objectIntent(j.id) // what a holder before has completed is recorded, old or not
		if err != nil {
			return 0, err
		}
		again = in != nil || j.state == wire.JobState_JOB_STATE_RUNNING
	}
	if adopt := parent != 0 && j.parent == 0; adopt || again {
		j.again = j.again || again
		if adopt {
			j.parent = parent
		}
		t.putJob(j)
	}
	return j.id, nil
}

// moveOf returns the live job of a kind for a file; nil where there is none.
func (v *view) moveOf(i moraine.InodeID, kind wire.JobKind) (*job, error) {
	b, ok, err := v.r.Get(v.k.move(i, uint8(kind)))
	if err != nil || !ok {
		return nil, err
	}
	d := dec{b: b}
	d.version(jobVersion)
	id := moraine.JobID(d.fixed64())
	if err := d.end("move"); err != nil {
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
func (t *tx) countMoves(j *job, by int) {
	if !ofTier(j.kind) {
		return
	}
	counter := map[wire.JobKind]counter{
		wire.JobKind_JOB_KIND_FLUSH: cFlushes, wire.JobKind_JOB_KIND_STAGE: cStages,
		wire.JobKind_JOB_KIND_EVICT: cEvictions, wire.JobKind_JOB_KIND_DELETE_OBJECT: cDeletions,
	}[j.kind]
	t.count[counter] += uint64(by)
	if !ofFile(j.kind) {
		return
	}
	if j.ending != 0 {
		return // it has left the index
	}
	t.indexMove(j, by)
}

// indexMove notes that a job is the one that moves its file (by is 1), or not
// any more (-1).
func (t *tx) indexMove(j *job, by int) {
	t.count[cMoves] += uint64(by)
	key := t.k.move(moraine.InodeID(j.target), uint8(j.kind))
	if by > 0 {
		t.put(key, putFixed64([]byte{1}, uint64(j.id)))
	} else {
		t.del(key)
	}
}

// settleOut has a live job only settle what it announced, and then end so. What
// is queued for its file from now on is another job's.
func (t *tx) settleOut(j *job, ending wire.JobState) {
	if j.ending == 0 && ofFile(j.kind) {
		t.indexMove(j, -1)
	}
	j.ending = ending
}

// forgetMoves ends the jobs of a file that dies, as far as nobody holds them and
// nothing has to be settled first: the others find it gone.
func (m *Machine) forgetMoves(t *tx, i *inode) error {
	if i.typ != typeFile || t.count[cMoves] == 0 {
		return nil
	}
	for _, kind := range []wire.JobKind{wire.JobKind_JOB_KIND_FLUSH, wire.JobKind_JOB_KIND_STAGE, wire.JobKind_JOB_KIND_EVICT} {
		j, err := t.moveOf(i.id, kind)
		if err != nil {
			return err
		}
		if j == nil || j.state != wire.JobState_JOB_STATE_PENDING {
			continue
		}
		in, err := t.objectIntent(j.id)
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
func (m *Machine) putOff(t *tx, j *job, until uint64) {
	t.unindexJob(j)
	j.state, j.holder, j.until, j.after = wire.JobState_JOB_STATE_PENDING, "", 0, until
	t.put(t.k.jobReady(uint8(j.kind), j.after, j.id), []byte{1})
	t.putJob(j)
}

// prepareMove finds out what a job of the object tier has to do for a mover that
// serves a bucket. It returns nil where the job is not to be leased now: it has
// nothing to do and is ended, or waits for its key, or is another bucket's.
func (m *Machine) prepareMove(t *tx, j *job, bucket, prefix string) (*wire.MoveTask, error) {
	in, err := t.objectIntent(j.id)
	if err != nil {
		return nil, err
	}
	if in != nil && in.at.bucket != bucket {
		return nil, nil
	}
	if in != nil && in.kind != wire.IntentKind_INTENT_KIND_UPLOAD {
		until, err := m.loseIntent(t, in, j.until)
		if err == nil {
			m.putOff(t, j, until)
		}
		return nil, err
	}
	if j.kind == wire.JobKind_JOB_KIND_DELETE_OBJECT {
		return m.prepareDelete(t, j, bucket)
	}
	i, err := t.inode(moraine.InodeID(j.target))
	if moraineKind(err) == moraine.NotFound {
		i, err = nil, nil
	}
	if err != nil {
		return nil, err
	}
	end, why, path, err := t.endOf(j, i)
	if err != nil {
		return nil, err
	}
	if end != 0 && in != nil {
		return settleOnly(j, i, in), nil
	}
	if end != 0 {
		return nil, m.endJob(t, j, end, why)
	}
	task := &wire.MoveTask{Attr: i.attr(), Path: path, Bucket: bucket}
	if j.kind != wire.JobKind_JOB_KIND_FLUSH {
		return m.prepareFromObject(t, j, i, task)
	}
	if task, err = m.prepareFlush(t, j, i, task, prefix, in != nil); task != nil && in != nil {
		task.Intent = in.toWire()
	}
	return task, err
}

// endOf reports how a move's job ends that has nothing to do any more; 0 where
// it has, and then the path of its file.
func (t *tx) endOf(j *job, i *inode) (end wire.JobState, why, path string, err error) {
	switch {
	case j.ending != 0:
		return j.ending, j.err, "", nil
	case i == nil || i.nlink == 0:
		return wire.JobState_JOB_STATE_DONE, "", "", nil
	}
	if need, why := needs(j.kind, i); !need {
		if why != "" {
			return wire.JobState_JOB_STATE_FAILED, why, "", nil
		}
		return wire.JobState_JOB_STATE_DONE, "", "", nil
	}
	path, ok, err := t.pathOf(i)
	if err == nil && !ok { // in a tree that is being removed, or a checkpoint that nobody sees yet
		return wire.JobState_JOB_STATE_DONE, "", "", nil
	}
	return 0, "", path, err
}

// settleOnly is the task of a job that only settles what it announced. i is nil
// where the file is gone.
func settleOnly(j *job, i *inode, in *objectIntent) *wire.MoveTask {
	task := &wire.MoveTask{Bucket: in.at.bucket, Key: in.at.key, Intent: in.toWire(), Cleanup: true,
		Attr: &wire.Attr{Inode: j.target, Type: wire.FileType_FILE_TYPE_REGULAR, Generation: uint64(in.generation)}}
	if i != nil {
		task.Attr = i.attr()
	}
	return task
}

// prepareDelete is prepareMove for the deletion of an object.
func (m *Machine) prepareDelete(t *tx, j *job, bucket string) (*wire.MoveTask, error) {
	o, err := t.object(moraine.ObjectID(j.target))
	if err != nil {
		return nil, err
	}
	if o == nil {
		return nil, m.endJob(t, j, wire.JobState_JOB_STATE_DONE, "")
	}
	if o.at.bucket != bucket {
		return nil, nil
	}
	w, err := t.owner(o.at)
	if err != nil || m.waitForKey(t, j, w) {
		return nil, err
	}
	return &wire.MoveTask{Bucket: bucket, Key: o.at.key, Object: o.toWire()}, nil
}

// waitForKey puts a job off whose key another job changes, or that is not
// settled, and reports whether it did.
func (m *Machine) waitForKey(t *tx, j *job, w *owner) bool {
	switch {
	case w.until > t.clusterTime():
		m.putOff(t, j, w.until)
	case w.job != 0 && w.job != j.id:
		m.putOff(t, j, t.clusterTime()+busyKeyDelay)
	default:
		return false
	}
	return true
}

// prepareFlush finds the key of a file, and what is there. A job that has
// something to settle first does not wait for a key.
func (m *Machine) prepareFlush(t *tx, j *job, i *inode, task *wire.MoveTask, prefix string, settles bool) (*wire.MoveTask, error) {
	task.Key = objectkey.Of(prefix, task.Path)
	p := place{task.Bucket, task.Key}
	if err := p.check("lease jobs"); err != nil && !settles {
		return nil, m.endJob(t, j, wire.JobState_JOB_STATE_FAILED, clip(err.Error(), moraine.MaxNameLen))
	}
	w, err := t.owner(p)
	if err != nil || (!settles && m.waitForKey(t, j, w)) {
		return nil, err
	}
	if w.object == 0 {
		return task, nil
	}
	o, err := t.mustObject(w.object)
	if err != nil {
		return nil, err
	}
	task.Object = o.toWire()
	if o.mustStay(i.id) {
		task.KeepFirst, task.KeepKey = true, objectkey.Kept(prefix, uint64(o.id))
		kept, err := t.owner(place{task.Bucket, task.KeepKey})
		if err != nil || (!settles && m.waitForKey(t, j, kept)) {
			return nil, err
		}
	}
	return task, nil
}

// prepareFromObject finds the object that a file is evicted to or staged from;
// of several the first that its extents name.
func (m *Machine) prepareFromObject(t *tx, j *job, i *inode, task *wire.MoveTask) (*wire.MoveTask, error) {
	id := i.object
	if j.kind == wire.JobKind_JOB_KIND_STAGE {
		var err error
		if id, err = t.firstObject(i); err != nil {
			return nil, err
		}
	}
	o, err := t.mustObject(id)
	if err != nil {
		return nil, err
	}
	if o.at.bucket != task.Bucket {
		return nil, nil
	}
	if j.kind == wire.JobKind_JOB_KIND_EVICT {
		w, err := t.owner(o.at)
		if err != nil || m.waitForKey(t, j, w) {
			return nil, err
		}
	}
	task.Object, task.Key = o.toWire(), o.at.key
	return task, nil
}

// firstObject returns the object of the first evicted range of a file that has
// one.
func (v *view) firstObject(i *inode) (id moraine.ObjectID, err error) {
	err = v.refsFrom(i.content, -1, func(r ref) (bool, error) {
		h, err := v.tableHead(r.table)
		if err != nil || h.evicted == 0 {
			return true, err
		}
		exts, err := v.extsFrom(r, r.base, noLimit)
		for _, e := range exts {
			if e.Object != 0 {
				id = e.Object
				return false, err
			}
		}
		return false, err
	})
	return id, err
}

// pathOf returns the path of an inode from the root, without a slash before it;
// false where nothing leads there from the root.
func (v *view) pathOf(i *inode) (path string, ok bool, err error) {
	for depth := 0; i.id != v.k.top(); depth++ {
		parent, name, err := v.nameOf(i)
		if err != nil || name == "" || depth > maxDepth {
			return "", false, err
		}
		if path == "" {
			path = name
		} else {
			path = name + "/" + path
		}
		if i, err = v.inode(parent); err != nil {
			return "", false, damaged(err)
		}
	}
	return path, true, nil
}

// finishMove ends a job of the object tier, or has it tried again. While an
// intent of its is not settled it cannot end: it is leased again, to settle it.
func (m *Machine) finishMove(t *tx, j *job, op *wire.FinishJob) error {
	in, err := t.objectIntent(j.id)
	if err != nil {
		return err
	}
	if op.GetError() == "" {
		if in != nil {
			return fail(moraine.Conflict, "finish job", j.id.String(), "what it announced is not settled")
		}
		return m.endMove(t, j)
	}
	j.err = clip(op.GetError(), moraine.MaxNameLen)
	j.tries++
	giveUp := op.GetFinal() || (j.tries >= MaxJobTries && (j.kind == wire.JobKind_JOB_KIND_STAGE || j.kind == wire.JobKind_JOB_KIND_EVICT))
	if giveUp && j.ending == 0 {
		t.settleOut(j, wire.JobState_JOB_STATE_FAILED)
	}
	switch {
	case in != nil && in.kind != wire.IntentKind_INTENT_KIND_UPLOAD:
		until, err := m.loseIntent(t, in, j.until)
		if err != nil {
			return err
		}
		if j.ending == 0 {
			m.putOff(t, j, until)
			return nil
		}
	case in != nil:
		m.retryJob(t, j)
		return nil
	}
	if j.ending != 0 {
		return m.endJob(t, j, j.ending, j.err)
	}
	m.retryJob(t, j)
	return nil
}

// endMove ends a job whose holder is done. A flush that made no object, or
// during which the file was changed by what wants it flushed, is followed by
// another.
func (m *Machine) endMove(t *tx, j *job) error {
	end := wire.JobState_JOB_STATE_DONE
	if j.ending != 0 {
		end = j.ending
	}
	if j.kind == wire.JobKind_JOB_KIND_DELETE_OBJECT && end == wire.JobState_JOB_STATE_DONE {
		if o, err := t.object(moraine.ObjectID(j.target)); err != nil || o != nil {
			if err == nil {
				m.retryJob(t, j) // it was elsewhere for a moment, and is to go all the same
			}
			return err
		}
	}
	stale := j.kind == wire.JobKind_JOB_KIND_FLUSH && end == wire.JobState_JOB_STATE_DONE && (j.again || !j.made)
	parent := j.parent
	if stale {
		j.parent = 0 // goes to its successor
	}
	if err := m.endJob(t, j, end, j.err); err != nil || !stale {
		return err
	}
	i, err := t.inode(moraine.InodeID(j.target))
	switch {
	case moraineKind(err) == moraine.NotFound:
		i, err = nil, nil
	case err != nil:
		return err
	}
	if i != nil && i.nlink > 0 && !i.clean() {
		_, err = m.queueFile(t, wire.JobKind_JOB_KIND_FLUSH, i, parent)
		return err
	}
	return m.childEnded(t, parent, "")
}

// cancelMove cancels a job of the object tier. One with an upload under way is
// leased once more, to abort it.
func (m *Machine) cancelMove(t *tx, j *job, reason string) error {
	in, err := t.objectIntent(j.id)
	if err != nil {
		return err
	}
	if in == nil {
		return m.endJob(t, j, wire.JobState_JOB_STATE_CANCELED, reason)
	}
	until := max(j.until, t.clusterTime()) // its holder may write as long as its lease is
	if in.kind != wire.IntentKind_INTENT_KIND_UPLOAD {
		if _, err := m.loseIntent(t, in, j.until); err != nil {
			return err
		}
		return m.endJob(t, j, wire.JobState_JOB_STATE_CANCELED, reason)
	}
	t.settleOut(j, wire.JobState_JOB_STATE_CANCELED)
	j.err = reason
	if j.state == wire.JobState_JOB_STATE_RUNNING {
		m.putOff(t, j, until)
	} else {
		t.putJob(j)
	}
	return nil
}
