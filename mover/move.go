package mover

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/objectkey"
	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/transport/wire"
)

// Content is one generation of a file, as *client.Reader provides it.
type Content interface {
	Size() int64
	Generation() moraine.Generation
	// ReadRange fills dst from off on, or fails.
	ReadRange(ctx context.Context, dst []byte, off int64) error
	Close() error
}

var moveKinds = []wire.JobKind{wire.JobKind_JOB_KIND_FLUSH, wire.JobKind_JOB_KIND_STAGE, wire.JobKind_JOB_KIND_EVICT,
	wire.JobKind_JOB_KIND_DELETE_OBJECT}

// move runs a job of the object tier. The job's lease fences every request to the store.
func (w *work) move(ctx context.Context) error {
	task := w.job.GetMove()
	switch {
	case w.deps.Bucket == nil:
		return w.fault(moraine.Unimplemented, "this mover has no bucket")
	case task == nil:
		return w.fault(moraine.Internal, "the job says nothing of what to move")
	case task.GetBucket() != "" && task.GetBucket() != w.deps.Bucket.Name():
		return w.fault(moraine.Internal, "the job is about bucket %q, this mover serves %q", task.GetBucket(), w.deps.Bucket.Name())
	}
	ctx = object.WithFence(ctx, w.held)
	switch w.job.GetKind() {
	case wire.JobKind_JOB_KIND_FLUSH:
		return w.flush(ctx, task)
	case wire.JobKind_JOB_KIND_STAGE:
		return w.stage(ctx, task)
	case wire.JobKind_JOB_KIND_EVICT:
		return w.evict(ctx, task)
	}
	return w.deleteObject(ctx, task)
}

// held is the fence: it fails once another mover may have the lease. The monotonic clock
// detects that if the wall clock was set back, and the wall clock if the machine slept.
func (w *work) held() error {
	end, now := *w.leaseEnd.Load(), w.deps.Clock.Now()
	if !now.Before(end) || !now.Round(0).Before(end.Round(0)) {
		return errLeaseLost
	}
	return nil
}

func (w *work) fault(kind moraine.Kind, format string, args ...any) error {
	return &moraine.Error{Op: "mover." + kindName(w.job.GetKind()), Ref: moraine.JobID(w.job.GetId()).String(), Kind: kind, Err: fmt.Errorf(format, args...)}
}

// begin records an intent before the mover sends a request to the store.
func (w *work) begin(ctx context.Context, in *wire.ObjectIntent) error {
	in.LeaseEpoch = w.job.GetLeaseEpoch()
	in.Bucket = w.deps.Bucket.Name()
	_, err := w.deps.Service.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_BeginObject{BeginObject: &wire.BeginObject{
		Job: w.job.GetId(), LeaseEpoch: w.job.GetLeaseEpoch(), Intent: in}}})
	return err
}

// end ends the intent: no object came of it, and none will.
func (w *work) end(ctx context.Context) error {
	_, err := w.deps.Service.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_EndObject{EndObject: &wire.EndObject{
		Job: w.job.GetId(), LeaseEpoch: w.job.GetLeaseEpoch()}}})
	return err
}

// evict confirms that the store still has the object, byte for byte as far as the store reports
// it. Then the service drops the file's stripes.
func (w *work) evict(ctx context.Context, task *wire.MoveTask) error {
	o := task.GetObject()
	if o == nil {
		return w.fault(moraine.Conflict, "no object holds the whole of the file's present content: flush it first")
	}
	if err := w.confirm(ctx, o); err != nil {
		return err
	}
	// COMMIT POINT of the eviction.
	_, err := w.deps.Service.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_CommitEvict{CommitEvict: &wire.CommitEvict{
		Job: w.job.GetId(), LeaseEpoch: w.job.GetLeaseEpoch(), Generation: task.GetAttr().GetGeneration(), Object: o.GetId()}}})
	if errors.Is(err, moraine.Stale) {
		return nil // the file has new content: there is nothing to drop
	}
	return err
}

// confirm compares an object's record with the current version that the store has at the key. A
// version that is not current disappears with the next lifecycle rule. It reports an object
// that differs from its record.
func (w *work) confirm(ctx context.Context, o *wire.Object) error {
	info, err := w.deps.Bucket.Head(ctx, object.Ref{Key: o.GetKey(), ETag: o.GetEtag()})
	if err == nil && (info.Version != o.GetVersion() || !w.isClusters(info)) {
		return w.fault(moraine.Lost, "the object at %s, of the same ETag, is not the one that was recorded: somebody else put it there", o.GetKey())
	}
	if err == nil {
		err = info.Is(o.GetSize(), o.GetCrc())
	}
	state := wire.ObjectState_OBJECT_STATE_DIFFERS
	switch {
	case errors.Is(err, moraine.NotFound):
		state = wire.ObjectState_OBJECT_STATE_MISSING
	case errors.Is(err, moraine.Conflict):
	default:
		return err
	}
	if !o.GetKept() {
		there, keptErr := w.deps.Bucket.Head(ctx, object.Ref{Key: w.keptKey(o)})
		if keptErr == nil && there.Is(o.GetSize(), o.GetCrc()) == nil {
			return w.fault(moraine.Conflict, "restored metadata is older than the move of the object to %s: it is there, and not lost", there.Key)
		}
	}
	lost := w.fault(moraine.Lost, "the object in the bucket is missing or differs from its record: %w", err)
	_, err = w.deps.Service.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ReportObjects{ReportObjects: &wire.ReportObjects{
		Checks: []*wire.ObjectCheck{{Object: o, State: state, Error: lost.Error()}}}}})
	if err != nil && ctx.Err() == nil {
		w.deps.Log.Warn("could not report that an object is missing in the bucket or differs from its record", "object", o.GetId(), "err", err)
	}
	return lost
}

// isGone reports whether the store answered that it does not have the named object.
func isGone(err error) bool {
	return errors.Is(err, moraine.NotFound) || errors.Is(err, moraine.Conflict)
}

func refOf(o *wire.Object) object.Ref {
	return object.Ref{Key: o.GetKey(), Version: o.GetVersion(), ETag: o.GetEtag()}
}

// stageStep is how many bytes of a file are staged between two checks of the lease.
const stageStep = 64 << 20

// stage copies the evicted ranges of a file back into stripes, in order.
func (w *work) stage(ctx context.Context, task *wire.MoveTask) error {
	if w.deps.Stage == nil {
		return w.fault(moraine.Unimplemented, "this mover cannot stage")
	}
	o, size := task.GetObject(), int64(task.GetAttr().GetSize())
	if o == nil {
		return nil // nothing is only in an object
	}
	w.total.Store(uint64(size))
	for off := int64(0); off < size; off += stageStep {
		n := min(stageStep, size-off)
		err := w.deps.Stage(ctx, w.job, off, n, w.pace)
		if errors.Is(err, moraine.Stale) {
			return nil // the file has new content
		}
		if err != nil {
			return err
		}
		w.advance(uint64(n))
		w.deps.Metrics.BytesStaged.Add(float64(n))
	}
	return nil
}

// deleteObject removes an object that nothing refers to. A DELETE without an answer may reach
// the store late. Then the intent stays, and the service does not use the key until the store
// accepts no signature of that time any longer.
func (w *work) deleteObject(ctx context.Context, task *wire.MoveTask) error {
	o := task.GetObject()
	if o == nil {
		return w.fault(moraine.Internal, "the job names no object")
	}
	err := w.begin(ctx, &wire.ObjectIntent{Kind: wire.IntentKind_INTENT_KIND_DELETE, Key: o.GetKey(), Object: o.GetId(), Etag: o.GetEtag()})
	if errors.Is(err, moraine.Stale) {
		return nil // something refers to it again, or the key was overwritten
	}
	if err != nil {
		return err
	}
	if o.GetKept() { // a copy in parts may still be open here
		if err := w.abortAll(ctx, o.GetKey(), ""); err != nil {
			return errors.Join(err, w.end(ctx))
		}
	}
	switch err := w.remove(ctx, o); {
	case err == nil:
	case object.Refused(err):
		return errors.Join(err, w.end(ctx))
	default:
		return err
	}
	// COMMIT POINT of the deletion: the key is free.
	_, err = w.deps.Service.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_DeletedObject{DeletedObject: &wire.DeletedObject{
		Job: w.job.GetId(), LeaseEpoch: w.job.GetLeaseEpoch()}}})
	return err
}

// remove deletes an object if it is the current version at its key. In a versioned bucket it
// then stays as an older version: deleting that version would make the one before it current
// again.
func (w *work) remove(ctx context.Context, o *wire.Object) error {
	there, err := w.removeAt(ctx, object.Ref{Key: o.GetKey(), ETag: o.GetEtag()}, o.GetVersion())
	if err != nil || there || o.GetKept() {
		return err
	}
	// Restored metadata may be older than the object's move to its kept key, where no other
	// object is ever put.
	_, err = w.removeAt(ctx, object.Ref{Key: w.keptKey(o)}, "")
	return err
}

// keptKey is where the cluster keeps an object whose own key another one needed.
func (w *work) keptKey(o *wire.Object) string {
	return objectkey.Kept(w.deps.Bucket.Prefix(), w.job.GetMove().GetCluster(), o.GetId())
}

// removeAt removes the object at one key, and reports whether it was there.
func (w *work) removeAt(ctx context.Context, at object.Ref, version string) (there bool, err error) {
	info, err := w.deps.Bucket.Head(ctx, at)
	switch {
	case isGone(err):
		return false, nil // the object there is not ours
	case errors.Is(err, moraine.Corrupt):
		// The store cannot say whose object it is. This cluster's record has it at that key, and
		// it would block the next file there. Only the local bucket answers so; it moves such a
		// file aside.
		w.deps.Log.Warn("deleting an object that is damaged in the bucket", "bucket", w.deps.Bucket.Name(), "key", at.Key, "err", err)
		err := w.deps.Bucket.Delete(ctx, object.Ref{Key: at.Key})
		return err == nil, err
	case err != nil:
		return false, object.MakeError(moraine.KindOf(err), true, err) // a HEAD changes nothing
	case version != "" && info.Version != version || !w.isClusters(info):
		return false, nil
	}
	r := object.Ref{Key: at.Key}
	if t, err := w.deps.Bucket.Traits(ctx); err == nil && t.IfMatchDelete {
		r.ETag = info.ETag
	}
	switch err := w.deps.Bucket.Delete(ctx, r); {
	case errors.Is(err, moraine.Conflict) && r.ETag != "":
		return false, nil // another program replaced it since
	case err != nil:
		return false, err
	}
	w.deps.Metrics.ObjectsDeleted.Inc()
	return true, nil
}

// isClusters reports, by its tag, whether this cluster made the object at a key. Other programs
// do not set the tag, nor do other clusters, not even if they flush the same bytes.
func (w *work) isClusters(info object.Info) bool {
	cluster := w.job.GetMove().GetCluster()
	return len(cluster) > 0 && strings.HasPrefix(info.Meta[uploadTag], fmt.Sprintf("%x-", cluster))
}

// abortAll ends the upload id, if given, and all others of a key.
func (w *work) abortAll(ctx context.Context, key, id string) error {
	ids, err := w.deps.Bucket.Uploads(ctx, key)
	if err != nil {
		return err
	}
	if id != "" {
		ids = append(ids, id)
	}
	for _, id := range ids {
		err := w.again(ctx, tries, func() error { return w.deps.Bucket.Abort(ctx, key, id) })
		if err != nil && !errors.Is(err, moraine.NotFound) {
			return err
		}
	}
	return nil
}

// again calls fn until it succeeds, fails permanently, or tries are used up. Only for requests
// that are safe to repeat.
func (w *work) again(ctx context.Context, tries int, fn func() error) error {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := fn()
		if err == nil || !errors.Is(err, moraine.Unavailable) {
			return err
		}
		if tries--; tries <= 0 {
			return err
		}
		if err := w.pause(ctx, pause); err != nil {
			return err
		}
	}
}

func (w *work) pause(ctx context.Context, d time.Duration) error {
	select {
	case <-w.deps.Clock.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
