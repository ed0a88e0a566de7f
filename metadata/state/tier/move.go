package tier

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// maxQueueMove is the largest number of inodes in one QueueMove.
	maxQueueMove = 256
	// busyKeyDelay is how long a job waits for a key that another job changes, in milliseconds of
	// cluster time.
	busyKeyDelay = 2_000
)

// QueueMove queues jobs that move files, or everything below directories.
func QueueMove(t *kvtx.Tx, op *wire.QueueMove) (*wire.MetaResponse, error) {
	if !record.OfFile(op.GetKind()) {
		return nil, kvtx.Fail(moraine.InvalidArgument, "queue move", op.GetKind().String(), "jobs of this kind do not move files")
	}
	if len(op.GetInodes()) > maxQueueMove {
		return nil, kvtx.Fail(moraine.TooLarge, "queue move", "", "the request has %d files, %d at most", len(op.GetInodes()), maxQueueMove)
	}
	reply := &wire.JobsReply{LeaseMillis: record.JobLeaseMillis}
	for _, id := range op.GetInodes() {
		i, err := tree.Named(t, moraine.InodeID(id))
		if err != nil {
			return nil, err
		}
		w, err := QueueInode(t, op.GetKind(), i)
		if err != nil {
			return nil, err
		}
		reply.Jobs = append(reply.Jobs, w)
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Jobs{Jobs: reply}}, nil
}

// QueueInode queues a move of one inode and returns its job. If nothing needs or can be done it
// returns an ended job without a number.
func QueueInode(t *kvtx.Tx, kind wire.JobKind, i *record.Inode) (*wire.Job, error) {
	ended := &wire.Job{Kind: kind, State: wire.JobState_JOB_STATE_DONE, Inode: uint64(i.Id)}
	var id moraine.JobID
	var err error
	switch {
	case i.Nlink == 0 || i.Typ >= record.TypeSymlink:
		return ended, nil
	case i.Typ == record.TypeDirectory:
		id, err = QueueTree(t, kind, i)
	default:
		need, why, bad := needs(&t.View, kind, i)
		if bad != nil {
			return nil, bad
		}
		if !need {
			if why != "" {
				ended.State, ended.Error = wire.JobState_JOB_STATE_FAILED, why
			}
			return ended, nil
		}
		id, err = QueueFile(t, kind, i, 0)
		if err == nil {
			err = retryStuck(t, id)
		}
		if err != nil {
			return nil, err
		}
	}
	if err != nil {
		return nil, err
	}
	j, err := jobs.Job(&t.View, id)
	if err != nil {
		return nil, err
	}
	return j.ToWire(), nil
}

// needs reports whether a file needs a move. why is the reason if the move is impossible.
func needs(v *kvtx.View, kind wire.JobKind, i *record.Inode) (need bool, why string, err error) {
	switch kind {
	case wire.JobKind_JOB_KIND_FLUSH:
		if !i.Clean() {
			return true, "", nil
		}
		again, err := lostCopy(v, i)
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
	bad, err := IsBad(v, i.Object)
	if bad {
		why = "the bucket does not have its object as it was recorded: flush it again first"
	}
	return !bad, why, err
}

// QueueFile queues a move of a file, or finds the live job of that kind. A flush that is running,
// or ran and will be retried, gets a successor, since it may have read older content.
func QueueFile(t *kvtx.Tx, kind wire.JobKind, i *record.Inode, parent moraine.JobID) (moraine.JobID, error) {
	j, err := moveOf(&t.View, i.Id, kind)
	if err != nil {
		return 0, err
	}
	if j == nil {
		name := i.Name
		if name == "" {
			name = i.Id.String()
		}
		return jobs.AddJob(t, jobs.JobSpec{Kind: kind, Subject: name, Target: uint64(i.Id), Parent: parent})
	}
	again := false
	if kind == wire.JobKind_JOB_KIND_FLUSH && !j.Again {
		in, err := ObjectIntent(&t.View, j.Id) // what a former holder completed is recorded, old or not
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
		jobs.PutJob(t, j)
	}
	return j.Id, nil
}

// retryStuck makes a stuck job try again at once, because somebody requests its move.
func retryStuck(t *kvtx.Tx, id moraine.JobID) error {
	j, err := jobs.Job(&t.View, id)
	if err != nil || j == nil || j.State != wire.JobState_JOB_STATE_PENDING || !j.Stuck() {
		return err
	}
	jobs.CountStuck(t, j, -1)
	j.Tries, j.Why = 0, 0
	jobs.RetryJob(t, j)
	return nil
}

// moveOf returns the live job of a kind for a file; nil if there is none.
func moveOf(v *kvtx.View, i moraine.InodeID, kind wire.JobKind) (*record.Job, error) {
	b, ok, err := v.R.Get(v.K.Move(i, uint8(kind)))
	if err != nil || !ok {
		return nil, err
	}
	id, err := record.DecodeID[moraine.JobID](record.JobVersion, b, "move")
	if err != nil {
		return nil, err
	}
	j, err := jobs.Job(v, id)
	if err == nil && j == nil {
		err = kvtx.Corrupt("move", id.String(), "the index of moves has the job, which has no record")
	}
	return j, err
}

// settleOut makes a live job only settle its intent and then end in the given state. Later requests
// for its file get a new job.
func settleOut(t *kvtx.Tx, j *record.Job, ending wire.JobState) {
	if j.Ending == 0 && record.OfFile(j.Kind) {
		jobs.IndexMove(t, j, -1)
	}
	j.Ending = ending
}

// ForgetMoves ends the jobs of a removed file that no mover has leased and that have nothing to
// settle. The others find the file gone.
func ForgetMoves(t *kvtx.Tx, i *record.Inode) error {
	if i.Typ != record.TypeFile || t.Count[record.CMoves] == 0 {
		return nil
	}
	for _, kind := range []wire.JobKind{wire.JobKind_JOB_KIND_FLUSH, wire.JobKind_JOB_KIND_STAGE, wire.JobKind_JOB_KIND_EVICT} {
		j, err := moveOf(&t.View, i.Id, kind)
		if err != nil {
			return err
		}
		if j == nil || j.State != wire.JobState_JOB_STATE_PENDING {
			continue
		}
		in, err := ObjectIntent(&t.View, j.Id)
		if err != nil {
			return err
		}
		if in != nil {
			continue
		}
		if err := jobs.EndJob(t, j, wire.JobState_JOB_STATE_DONE, ""); err != nil {
			return err
		}
	}
	return nil
}

// putOff delays a live job until a cluster time.
func putOff(t *kvtx.Tx, j *record.Job, until uint64) {
	jobs.UnindexJob(t, j)
	j.State, j.Holder, j.Until, j.After = wire.JobState_JOB_STATE_PENDING, "", 0, until
	t.Put(t.K.JobReady(uint8(j.Kind), j.After, j.Id), []byte{1})
	jobs.PutJob(t, j)
}

// FinishMove ends a job of the object tier or queues a retry. A job with an unsettled intent cannot
// end: it is leased again to settle it.
func FinishMove(t *kvtx.Tx, j *record.Job, op *wire.FinishJob) error {
	in, err := ObjectIntent(&t.View, j.Id)
	if err != nil {
		return err
	}
	if op.GetError() == "" {
		if in != nil {
			return kvtx.Fail(moraine.Conflict, "finish job", j.Id.String(), "the job must first end the change that it announced")
		}
		return endMove(t, j)
	}
	jobs.CountStuck(t, j, -1)
	j.Err = record.Clip(op.GetError(), moraine.MaxNameLen)
	j.Tries, j.Why = j.Tries+1, moraine.Kind(min(op.GetKind(), 255))
	jobs.CountStuck(t, j, 1)
	if j.Blocked() { // whoever waits for the tree learns of it; the flush goes on by itself
		if err := ChildEnded(t, j.Parent, j.Subject+": "+j.Err); err != nil {
			return err
		}
		j.Parent = 0
	}
	giveUp := op.GetFinal() || (j.Tries >= record.MaxJobTries && (j.Kind == wire.JobKind_JOB_KIND_STAGE || j.Kind == wire.JobKind_JOB_KIND_EVICT))
	if giveUp && j.Ending == 0 {
		settleOut(t, j, wire.JobState_JOB_STATE_FAILED)
	}
	switch {
	case in != nil && in.Kind != wire.IntentKind_INTENT_KIND_UPLOAD:
		until, err := loseIntent(t, in, j.Until)
		if err != nil {
			return err
		}
		if j.Ending == 0 {
			putOff(t, j, until)
			return nil
		}
	case in != nil:
		jobs.RetryJob(t, j)
		return nil
	}
	if j.Ending != 0 {
		return jobs.EndJob(t, j, j.Ending, j.Err)
	}
	jobs.RetryJob(t, j)
	return nil
}

// endMove ends a job that its holder completed. A flush that made no object gets a successor; so
// does one whose file changed under a policy that requires a flush.
func endMove(t *kvtx.Tx, j *record.Job) error {
	end := wire.JobState_JOB_STATE_DONE
	if j.Ending != 0 {
		end = j.Ending
	}
	if j.Kind == wire.JobKind_JOB_KIND_DELETE_OBJECT && end == wire.JobState_JOB_STATE_DONE {
		if o, err := layout.Object(&t.View, moraine.ObjectID(j.Target)); err != nil || o != nil {
			if err == nil {
				jobs.RetryJob(t, j) // it had a use for a moment, and must be deleted after all
			}
			return err
		}
	}
	stale := j.Kind == wire.JobKind_JOB_KIND_FLUSH && end == wire.JobState_JOB_STATE_DONE && (j.Again || !j.Made)
	parent := j.Parent
	if stale {
		j.Parent = 0 // passes to the successor
	}
	if err := jobs.EndJob(t, j, end, j.Err); err != nil || !stale {
		return err
	}
	i, err := tree.Inode(t, moraine.InodeID(j.Target))
	switch {
	case kvtx.MoraineKind(err) == moraine.NotFound:
		i, err = nil, nil
	case err != nil:
		return err
	}
	if i != nil && i.Nlink > 0 && !i.Clean() {
		_, err = QueueFile(t, wire.JobKind_JOB_KIND_FLUSH, i, parent)
		return err
	}
	return ChildEnded(t, parent, "")
}

// CancelMove cancels a job of the object tier. One with an upload in progress is leased once more,
// to abort the upload.
func CancelMove(t *kvtx.Tx, j *record.Job, reason string) error {
	in, err := ObjectIntent(&t.View, j.Id)
	if err != nil {
		return err
	}
	if in == nil {
		return jobs.EndJob(t, j, wire.JobState_JOB_STATE_CANCELED, reason)
	}
	until := max(j.Until, t.ClusterTime()) // its holder may write for as long as its lease lasts
	if in.Kind != wire.IntentKind_INTENT_KIND_UPLOAD {
		if _, err := loseIntent(t, in, j.Until); err != nil {
			return err
		}
		return jobs.EndJob(t, j, wire.JobState_JOB_STATE_CANCELED, reason)
	}
	settleOut(t, j, wire.JobState_JOB_STATE_CANCELED)
	j.Err = reason
	if j.State == wire.JobState_JOB_STATE_RUNNING {
		putOff(t, j, until)
	} else {
		jobs.PutJob(t, j)
	}
	return nil
}
