package mover

import (
	"context"
	"errors"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// pieceBytes is the length of the pieces that get checksums.
	pieceBytes = 16 << 20
	// sumsPerCommit is how many checksums one request carries.
	sumsPerCommit = 4096
	// tries is how often a request that is safe to repeat is sent.
	tries = 4
)

// flushing is one running flush.
//
// The intents in the Raft log make it safe. If the mover stops
//   - before the upload's id is recorded: the next mover aborts all uploads of the key;
//   - before the intent says completing: the next mover aborts the upload, and Complete of an aborted upload makes nothing, however late it arrives;
//   - after that: the next mover aborts the upload and then checks the key. Either the object is there, whole, and it records it; or the object will never be there;
//   - before CommitFlush: the same.
type flushing struct {
	*work
	task *wire.MoveTask
	key  string
	// For the upload: what the bucket supports, and what is at the key before it.
	traits object.Traits
	expect object.Condition
}

func (w *work) flush(ctx context.Context, task *wire.MoveTask) error {
	f := &flushing{work: w, task: task, key: task.GetKey()}
	if f.key == "" || task.GetAttr() == nil {
		return w.fault(moraine.Internal, "the job names no key or no file")
	}
	recorded, err := f.settle(ctx, task.GetIntent())
	if err != nil || recorded {
		return err
	}
	if task.GetCleanup() {
		return nil // the file is gone, or the job was canceled or has failed
	}
	keep := task.GetKeepFirst()
	if !keep {
		if keep, err = f.wasKept(ctx); err != nil {
			return err
		}
	}
	if keep {
		if err := f.keep(ctx); err != nil {
			return err
		}
	}
	return f.upload(ctx)
}

// settle ends what an earlier holder of the job announced. recorded says that its object
// exists, and is now recorded.
func (f *flushing) settle(ctx context.Context, in *wire.ObjectIntent) (recorded bool, err error) {
	switch in.GetKind() {
	case wire.IntentKind_INTENT_KIND_UPLOAD:
	case wire.IntentKind_INTENT_KIND_COPY:
		// Repeating a copy gives the same object, but a copy in parts may be left open.
		return false, f.abortAll(ctx, in.GetKey(), "")
	default:
		return false, nil
	}
	// End the upload first: after that the object at the key is final.
	if err := f.abortAll(ctx, in.GetKey(), in.GetUploadId()); err != nil {
		return false, err
	}
	if in.GetCompleting() {
		info, err := f.deps.Bucket.Head(ctx, object.Ref{Key: in.GetKey()})
		if err != nil && !errors.Is(err, moraine.NotFound) && !errors.Is(err, moraine.Corrupt) {
			return false, err
		}
		if err == nil && f.isOurs(info, in) {
			sums, err := f.readBack(ctx, info.Ref, info.Size, in.GetCrc())
			if err == nil {
				return true, f.commit(ctx, info, wire.Verified_VERIFIED_READ_BACK, in.GetGeneration(), in.GetCrc(), sums)
			}
			if !errors.Is(err, moraine.Corrupt) {
				return false, err
			}
		}
	}
	return false, f.end(ctx)
}

// isOurs tells an object of an announced upload from any other by its tag. Two clusters that
// flush the same bytes to the same key make objects with the same ETag.
func (f *flushing) isOurs(info object.Info, in *wire.ObjectIntent) bool {
	if info.Size != int64(in.GetSize()) || info.HasCRC && info.CRC != in.GetCrc() {
		return false
	}
	return info.Meta[uploadTag] == f.tag(in.GetGeneration(), in.GetLeaseEpoch())
}

// wasKept reports whether the object recorded at the key is actually at its kept key, because
// restored metadata is older than its move. The mover then records the move again, so that the
// object is deleted there when nothing refers to it.
func (f *flushing) wasKept(ctx context.Context) (bool, error) {
	old := f.task.GetObject()
	if old == nil || old.GetKept() || old.GetEtag() == "" {
		return false, nil
	}
	switch _, err := f.deps.Bucket.Head(ctx, refOf(old)); {
	case errors.Is(err, moraine.Corrupt):
		return false, nil // it exists, damaged
	case !isGone(err):
		return false, err
	}
	f.task.KeepKey = f.keptKey(old)
	info, err := f.deps.Bucket.Head(ctx, object.Ref{Key: f.task.KeepKey})
	if isGone(err) {
		return false, nil
	}
	return err == nil && info.Size == int64(old.GetSize()), err
}

// keep copies an object that files still refer to. The copy is at another key.
func (f *flushing) keep(ctx context.Context) error {
	old, dst := f.task.GetObject(), f.task.GetKeepKey()
	if old == nil || dst == "" {
		return f.fault(moraine.Internal, "the job does not say what to keep, or where")
	}
	err := f.begin(ctx, &wire.ObjectIntent{Kind: wire.IntentKind_INTENT_KIND_COPY, Key: dst, SourceKey: old.GetKey(), Object: old.GetId()})
	if err != nil {
		return err
	}
	if err := f.abortAll(ctx, dst, ""); err != nil { // a copy in parts left by an earlier holder
		return errors.Join(err, f.end(ctx))
	}
	info, err := f.deps.Bucket.Copy(ctx, refOf(old), int64(old.GetSize()), dst)
	if isGone(err) { // restored metadata may be older than an earlier copy
		if there, headErr := f.deps.Bucket.Head(ctx, object.Ref{Key: dst}); headErr == nil {
			info, err = there, nil
		}
	}
	if errors.Is(err, moraine.Corrupt) {
		return errors.Join(f.fault(moraine.Corrupt, "the object at %s is damaged in the bucket, and files still have bytes in it alone (`moraine cluster lost`): %w", old.GetKey(), err), f.end(ctx))
	}
	var verified wire.Verified
	if err == nil && info.Size == int64(old.GetSize()) {
		verified, err = f.verify(ctx, info, old.GetCrc())
	}
	if err == nil && verified == 0 {
		return f.fault(moraine.Corrupt, "the copy at %s has %d bytes, CRC32C %08x; recorded are %d, %08x", dst, info.Size, info.CRC, old.GetSize(), old.GetCrc())
	}
	if err != nil {
		if object.Refused(err) {
			return errors.Join(err, f.end(ctx))
		}
		return err // it may still appear: the intent stays
	}
	// COMMIT POINT of the move: the object no longer needs the old key.
	_, err = f.deps.Service.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_MoveObject{MoveObject: &wire.MoveObject{
		Job: f.job.GetId(), LeaseEpoch: f.job.GetLeaseEpoch(),
		Object: &wire.Object{Id: old.GetId(), Bucket: f.deps.Bucket.Name(), Key: dst, Version: info.Version, Etag: info.ETag,
			Verified: verified}}}})
	return err
}

// upload sends the file's current generation and records the object.
func (f *flushing) upload(ctx context.Context) error {
	attr := f.task.GetAttr()
	content, err := f.deps.Open(ctx, moraine.InodeID(attr.GetInode()))
	if err != nil {
		return err
	}
	defer content.Close()
	generation := uint64(content.Generation())
	if content.Size() > object.MaxSize {
		return f.fault(moraine.TooLarge, "%d bytes: an object holds %d at most", content.Size(), int64(object.MaxSize))
	}
	if f.traits, err = f.deps.Bucket.Traits(ctx); err != nil {
		return err
	}
	// Before anything is announced: to end an upload with an unknown id, the mover ends all
	// uploads to the key. If the object there is foreign, so are those uploads.
	if f.expect, err = f.mayWrite(ctx); err != nil {
		return err
	}
	in := &wire.ObjectIntent{Kind: wire.IntentKind_INTENT_KIND_UPLOAD, Key: f.key, Generation: generation}
	if err := f.begin(ctx, in); err != nil {
		return f.unlessStale(err)
	}
	id, err := f.deps.Bucket.NewUpload(ctx, f.key, f.meta(attr, generation))
	if object.Refused(err) {
		return errors.Join(err, f.end(ctx))
	}
	if err != nil {
		return f.giveUp(ctx, "", err)
	}
	in.UploadId = id
	if err := f.begin(ctx, in); err != nil {
		return f.giveUp(ctx, id, err)
	}
	parts, err := f.send(ctx, content, id)
	if err != nil {
		return f.giveUp(ctx, id, err)
	}
	in.Completing, in.Etag, in.Size, in.Crc = true, object.PredictETag(parts.list), uint64(content.Size()), parts.crc
	if err := f.begin(ctx, in); err != nil {
		return f.giveUp(ctx, id, err)
	}
	info, err := f.complete(ctx, in, parts)
	if err != nil {
		return err
	}
	verified, err := f.verify(ctx, info, parts.crc)
	if err != nil {
		return err // the next holder finds the intent and completes it
	}
	f.deps.Metrics.BytesFlushed.Add(float64(content.Size()))
	return f.commit(ctx, info, verified, generation, parts.crc, parts.sums)
}

// giveUp ends an upload that is not completing, and its intent. If that fails, the next holder
// of the job finds the intent.
func (f *flushing) giveUp(ctx context.Context, id string, cause error) error {
	if ctx.Err() != nil {
		return cause
	}
	if err := f.abortAll(ctx, f.key, id); err != nil {
		return errors.Join(cause, err)
	}
	if err := f.end(ctx); err != nil {
		return errors.Join(cause, err)
	}
	return f.unlessStale(cause)
}

// unlessStale drops an error that only says that the file has new content: the service queues
// the flush of that when this job ends.
func (f *flushing) unlessStale(err error) error {
	if errors.Is(err, moraine.Stale) {
		return nil
	}
	return err
}

// complete makes the object from the parts. If the answer is lost, HEAD shows the result; only
// what HEAD shows counts.
func (f *flushing) complete(ctx context.Context, in *wire.ObjectIntent, parts *sentParts) (info object.Info, _ error) {
	for left := tries; ; left-- {
		cond, err := f.condition(ctx)
		if errors.Is(err, moraine.Exists) {
			return info, f.giveUp(ctx, in.GetUploadId(), err)
		}
		if err != nil {
			return info, err
		}
		_, err = f.deps.Bucket.Complete(ctx, f.key, in.GetUploadId(), parts.list, parts.crc, true, cond)
		var headErr error
		info, headErr = f.deps.Bucket.Head(ctx, object.Ref{Key: f.key})
		if headErr == nil && f.isOurs(info, in) {
			if err != nil { // a store that failed after it made the object may still have the upload
				err = f.abortAll(ctx, f.key, in.GetUploadId())
			}
			return info, err
		}
		switch {
		case err == nil && headErr == nil:
			return info, f.fault(moraine.Corrupt, "the bucket has %d bytes at %s (ETag %s) after %d were uploaded", info.Size, f.key, info.ETag, in.GetSize())
		case err == nil:
			err = headErr
		case object.Refused(err) && (headErr == nil || errors.Is(headErr, moraine.NotFound)):
			if errors.Is(err, moraine.Conflict) && headErr == nil {
				err = f.foreign(info)
			}
			return info, f.giveUp(ctx, in.GetUploadId(), err)
		}
		if left <= 1 || ctx.Err() != nil || errors.Is(err, moraine.Fenced) {
			return info, err // the next holder finds the intent
		}
		if err := f.pause(ctx, firstPause); err != nil {
			return info, err
		}
	}
}

// commit records an object that HEAD has shown.
func (f *flushing) commit(ctx context.Context, info object.Info, verified wire.Verified, generation uint64, sum uint32, sums []uint32) error {
	o := &wire.Object{Bucket: f.deps.Bucket.Name(), Key: info.Key, Version: info.Version, Etag: info.ETag, Size: uint64(info.Size),
		Crc: sum, Inode: f.task.GetAttr().GetInode(), Generation: generation, Piece: pieceBytes,
		Verified: verified}
	for first := 0; ; first += sumsPerCommit {
		n := min(sumsPerCommit, len(sums)-first)
		req := &wire.CommitFlush{Job: f.job.GetId(), LeaseEpoch: f.job.GetLeaseEpoch(), Object: o, Sums: sums[first : first+n],
			FirstSum: uint64(first), Final: first+n == len(sums)}
		// COMMIT POINT of the flush, if final: evictions and readers use the record.
		if _, err := f.deps.Service.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_CommitFlush{CommitFlush: req}}); err != nil {
			return err
		}
		if req.Final {
			f.deps.Metrics.FilesFlushed.Inc()
			return nil
		}
	}
}

// uploadTag is the user metadata that names the flush that made an object.
const uploadTag = "moraine-upload"

func (f *flushing) tag(generation, epoch uint64) string {
	return fmt.Sprintf("%s-%016x-%016x-%016x", f.mark(), generation, f.job.GetId(), epoch)
}

// mark is the prefix of the tags of all objects that this cluster makes of the file.
func (f *flushing) mark() string {
	return fmt.Sprintf("%x-%016x", f.task.GetCluster(), f.task.GetAttr().GetInode())
}

// meta is the object's user metadata (docs/formats/object-keys.md).
func (f *flushing) meta(attr *wire.Attr, generation uint64) map[string]string {
	const second = 1e9
	return map[string]string{
		"file-owner": fmt.Sprint(attr.GetUid()), "file-group": fmt.Sprint(attr.GetGid()),
		"file-permissions": fmt.Sprintf("%04o", attr.GetMode()&0o7777),
		"file-mtime":       fmt.Sprintf("%d.%09d", attr.GetMtime()/second, attr.GetMtime()%second),
		uploadTag:          f.tag(generation, f.job.GetLeaseEpoch()),
	}
}
