package tier

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/objectkey"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// PrepareMove returns the task of a job for a mover that serves a bucket. It
// returns nil if the job must not be leased now. The job had nothing to do and
// ended, waits for its key, or belongs to another bucket.
func PrepareMove(t *kvtx.Tx, j *record.Job, bucket, prefix string) (*wire.MoveTask, error) {
	in, err := ObjectIntent(&t.View, j.Id)
	if err != nil {
		return nil, err
	}
	if in != nil && in.At.Bucket != bucket {
		return nil, nil
	}
	if in != nil && in.Kind != wire.IntentKind_INTENT_KIND_UPLOAD {
		until, err := loseIntent(t, in, j.Until)
		if err == nil {
			putOff(t, j, until)
		}
		return nil, err
	}
	if j.Kind == wire.JobKind_JOB_KIND_DELETE_OBJECT {
		return prepareDelete(t, j, bucket)
	}
	i, err := tree.Inode(t, moraine.InodeID(j.Target))
	if kvtx.MoraineKind(err) == moraine.NotFound {
		i, err = nil, nil
	}
	if err != nil {
		return nil, err
	}
	end, why, path, err := endOf(t, j, i)
	if err != nil {
		return nil, err
	}
	id, err := t.Identity()
	if err != nil {
		return nil, err
	}
	if end != 0 && in != nil {
		task := settleOnly(j, i, in)
		task.Cluster = id.Uuid[:]
		return task, nil
	}
	if end != 0 {
		return nil, jobs.EndJob(t, j, end, why)
	}
	if j.Kind == wire.JobKind_JOB_KIND_FLUSH && in == nil {
		if wait, err := waitForParts(t, j, i); wait || err != nil {
			return nil, err
		}
	}
	task := &wire.MoveTask{Attr: i.Attr(), Path: path, Bucket: bucket, Cluster: id.Uuid[:]}
	if j.Kind != wire.JobKind_JOB_KIND_FLUSH {
		return prepareFromObject(t, j, i, task)
	}
	if task, err = prepareFlush(t, j, i, task, prefix, in != nil); task != nil && in != nil {
		task.Intent = in.ToWire()
	}
	return task, err
}

// endOf returns how a move ends that has nothing left to do. If it has something to do, end is 0
// and path is the path of its file.
func endOf(t *kvtx.Tx, j *record.Job, i *record.Inode) (end wire.JobState, why, path string, err error) {
	switch {
	case j.Ending != 0:
		return j.Ending, j.Err, "", nil
	case i == nil || i.Nlink == 0:
		return wire.JobState_JOB_STATE_DONE, "", "", nil
	}
	need, why, err := needs(&t.View, j.Kind, i)
	if err != nil {
		return 0, "", "", err
	}
	if !need {
		if why != "" {
			return wire.JobState_JOB_STATE_FAILED, why, "", nil
		}
		return wire.JobState_JOB_STATE_DONE, "", "", nil
	}
	path, ok, err := tree.PathOf(&t.View, i)
	if err == nil && !ok { // in a tree being removed, or a checkpoint that nobody sees yet
		return wire.JobState_JOB_STATE_DONE, "", "", nil
	}
	return 0, "", path, err
}

// settleOnly returns the task of a job that only settles its intent. i is nil if the file is gone.
func settleOnly(j *record.Job, i *record.Inode, in *record.ObjectIntent) *wire.MoveTask {
	task := &wire.MoveTask{Bucket: in.At.Bucket, Key: in.At.Key, Intent: in.ToWire(), Cleanup: true,
		Attr: &wire.Attr{Inode: j.Target, Type: wire.FileType_FILE_TYPE_REGULAR, Generation: uint64(in.Generation)}}
	if i != nil {
		task.Attr = i.Attr()
	}
	return task
}

// prepareDelete is PrepareMove for the deletion of an object.
func prepareDelete(t *kvtx.Tx, j *record.Job, bucket string) (*wire.MoveTask, error) {
	o, err := layout.Object(&t.View, moraine.ObjectID(j.Target))
	if err != nil {
		return nil, err
	}
	if o == nil {
		return nil, jobs.EndJob(t, j, wire.JobState_JOB_STATE_DONE, "")
	}
	if o.At.Bucket != bucket {
		return nil, nil
	}
	w, err := layout.Owner(&t.View, o.At)
	if err != nil || waitForKey(t, j, w) {
		return nil, err
	}
	if wait, err := waitForIndex(t, j, o); wait || err != nil {
		return nil, err
	}
	id, err := t.Identity()
	if err != nil {
		return nil, err
	}
	return &wire.MoveTask{Bucket: bucket, Key: o.At.Key, Object: o.ToWire(), Cluster: id.Uuid[:]}, nil
}

// waitForKey delays a job whose key another job changes, or is not settled. It returns true if it
// did.
func waitForKey(t *kvtx.Tx, j *record.Job, w *record.Owner) bool {
	switch {
	case w.Until > t.ClusterTime():
		putOff(t, j, w.Until)
	case w.Job != 0 && w.Job != j.Id:
		putOff(t, j, t.ClusterTime()+busyKeyDelay)
	default:
		return false
	}
	return true
}

// prepareFlush finds a file's key and what is there. A job that must first settle an intent does
// not wait for a key.
func prepareFlush(t *kvtx.Tx, j *record.Job, i *record.Inode, task *wire.MoveTask, prefix string, settles bool) (*wire.MoveTask, error) {
	task.Key = objectkey.Of(prefix, task.Path)
	p := record.Place{Bucket: task.Bucket, Key: task.Key}
	if err := layout.Check(p, "lease jobs"); err != nil && !settles {
		return nil, jobs.EndJob(t, j, wire.JobState_JOB_STATE_FAILED, record.Clip(err.Error(), moraine.MaxNameLen))
	}
	w, err := layout.Owner(&t.View, p)
	if err != nil || (!settles && waitForKey(t, j, w)) {
		return nil, err
	}
	own, err := tree.Effective(&t.View, i.Parent)
	if err != nil {
		return nil, err
	}
	task.Overwrite = own.Foreign == wire.ForeignPolicy_FOREIGN_POLICY_OVERWRITE
	if w.Object == 0 {
		return task, nil
	}
	o, err := layout.MustObject(&t.View, w.Object)
	if err != nil {
		return nil, err
	}
	task.Object = o.ToWire()
	if o.MustStay(i.Id) {
		task.KeepFirst, task.KeepKey = true, objectkey.Kept(prefix, task.Cluster, uint64(o.Id))
		kept, err := layout.Owner(&t.View, record.Place{Bucket: task.Bucket, Key: task.KeepKey})
		if err != nil || (!settles && waitForKey(t, j, kept)) {
			return nil, err
		}
	}
	return task, nil
}

// prepareFromObject finds the object to which a file is evicted or from which it is staged. If
// there are several, it takes the first in the file.
func prepareFromObject(t *kvtx.Tx, j *record.Job, i *record.Inode, task *wire.MoveTask) (*wire.MoveTask, error) {
	id := i.Object
	if j.Kind == wire.JobKind_JOB_KIND_STAGE {
		var err error
		if id, err = firstObject(&t.View, i); err != nil {
			return nil, err
		}
	}
	o, err := layout.MustObject(&t.View, id)
	if err != nil {
		return nil, err
	}
	if o.At.Bucket != task.Bucket {
		return nil, nil
	}
	if j.Kind == wire.JobKind_JOB_KIND_EVICT {
		w, err := layout.Owner(&t.View, o.At)
		if err != nil || waitForKey(t, j, w) {
			return nil, err
		}
	}
	task.Object, task.Key = o.ToWire(), o.At.Key
	return task, nil
}

// firstObject returns the object of the first evicted range of a file.
func firstObject(v *kvtx.View, i *record.Inode) (id moraine.ObjectID, err error) {
	err = layout.RefsFrom(v, i.Content, -1, func(r record.Ref) (bool, error) {
		h, err := layout.TableHead(v, r.Table)
		if err != nil || h.Evicted == 0 {
			return true, err
		}
		exts, err := layout.ExtsFrom(v, r, r.Base, layout.NoLimit)
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
