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

// ObjectIntent returns a job's live intent; nil if it has none.
func ObjectIntent(v *kvtx.View, j moraine.JobID) (*record.ObjectIntent, error) {
	b, ok, err := v.R.Get(v.K.ObjectIntent(j))
	if err != nil || !ok {
		return nil, err
	}
	in := &record.ObjectIntent{Job: j}
	return in, in.Decode(b)
}

// HeldMove returns a job of one of the kinds that the caller leased under the given epoch.
func HeldMove(t *kvtx.Tx, op string, id, epoch uint64, kinds ...wire.JobKind) (*record.Job, error) {
	j, err := jobs.HeldJob(t, op, id, epoch)
	if err != nil {
		return nil, err
	}
	for _, k := range kinds {
		if j.Kind == k {
			return j, nil
		}
	}
	return nil, kvtx.Fail(moraine.InvalidArgument, op, j.Id.String(), "a %s job cannot send this request", j.Kind)
}

// BeginObject announces a change of a key, or adds details to an announced one.
func BeginObject(t *kvtx.Tx, op *wire.BeginObject) (*wire.MetaResponse, error) {
	const name = "begin object"
	j, err := HeldMove(t, name, op.GetJob(), op.GetLeaseEpoch(), wire.JobKind_JOB_KIND_FLUSH, wire.JobKind_JOB_KIND_DELETE_OBJECT)
	if err != nil {
		return nil, err
	}
	want, err := intentFromWire(j, op.GetIntent())
	if err != nil {
		return nil, err
	}
	have, err := ObjectIntent(&t.View, j.Id)
	if err != nil {
		return nil, err
	}
	if have != nil {
		return moreOfIntent(t, have, want)
	}
	if j.Ending != 0 {
		return nil, kvtx.Fail(moraine.Conflict, name, j.Id.String(), "the job is ending: it can only complete the change that it announced")
	}
	switch want.Kind {
	case wire.IntentKind_INTENT_KIND_UPLOAD:
		err = mayUpload(t, j, want)
	case wire.IntentKind_INTENT_KIND_COPY:
		err = mayCopy(t, want)
	default:
		err = mayDelete(t, j, want)
	}
	if err != nil {
		return nil, err
	}
	return kvtx.Done(), claim(t, want)
}

// intentFromWire checks an intent against what its job may do.
func intentFromWire(j *record.Job, w *wire.ObjectIntent) (*record.ObjectIntent, error) {
	in := &record.ObjectIntent{
		Job: j.Id, Kind: w.GetKind(), At: record.Place{Bucket: w.GetBucket(), Key: w.GetKey()}, Generation: moraine.Generation(w.GetGeneration()),
		UploadID: w.GetUploadId(), Epoch: j.Epoch, Completing: w.GetCompleting(), Etag: w.GetEtag(), Size: w.GetSize(), Crc: w.GetCrc(),
		Source: w.GetSourceKey(), Object: moraine.ObjectID(w.GetObject()),
	}
	const op = "begin object"
	if err := layout.Check(in.At, op); err != nil {
		return nil, err
	}
	bad := func(why string) (*record.ObjectIntent, error) {
		return nil, kvtx.Fail(moraine.InvalidArgument, op, in.At.String(), "%s", why)
	}
	flush := j.Kind == wire.JobKind_JOB_KIND_FLUSH
	switch in.Kind {
	case wire.IntentKind_INTENT_KIND_UPLOAD:
		if !flush || in.Source != "" || in.Object != 0 {
			return bad("only a FLUSH job announces an upload, without a source key or an object")
		}
	case wire.IntentKind_INTENT_KIND_COPY:
		if !flush || in.Object == 0 || in.Source == "" || in.Source == in.At.Key {
			return bad("only a FLUSH job announces a copy, of an object at another key")
		}
		if err := layout.Check((record.Place{Bucket: in.At.Bucket, Key: in.Source}), op); err != nil {
			return nil, err
		}
	case wire.IntentKind_INTENT_KIND_DELETE:
		if flush || in.Object == 0 {
			return bad("only a DELETE_OBJECT job announces a delete, of its own object")
		}
	default:
		return bad("the kind of the announced change is unknown")
	}
	if in.Kind != wire.IntentKind_INTENT_KIND_UPLOAD && (in.UploadID != "" || in.Completing) {
		return bad("only an upload has an upload id or is completed")
	}
	if len(in.UploadID) > record.MaxToken || len(in.Etag) > record.MaxToken {
		return bad("the upload id or the ETag is too long")
	}
	return in, nil
}

// moreOfIntent adds details to an announced change. Earlier details must be the same.
func moreOfIntent(t *kvtx.Tx, have, want *record.ObjectIntent) (*wire.MetaResponse, error) {
	conflict := func(why string) (*wire.MetaResponse, error) {
		return nil, kvtx.Fail(moraine.Conflict, "begin object", have.At.String(), "%s", why)
	}
	switch {
	case have.Kind != want.Kind || have.At != want.At || have.Source != want.Source || have.Generation != want.Generation ||
		(have.Kind != wire.IntentKind_INTENT_KIND_UPLOAD && have.Object != want.Object):
		return conflict("the job has announced another change: end that change first")
	case have.Epoch != want.Epoch:
		return conflict("an earlier holder of the job announced the change: end that change first")
	case have.UploadID != "" && have.UploadID != want.UploadID:
		return conflict("the upload has another upload id")
	case have.Completing && (!want.Completing || have.Etag != want.Etag || have.Size != want.Size || have.Crc != want.Crc):
		return conflict("the job has announced that it completes the upload with another ETag, size or checksum")
	}
	want.Object = have.Object
	t.Put(t.K.ObjectIntent(have.Job), want.Encode())
	return kvtx.Done(), nil
}

// mayUpload fails if a flush may not write to its key. Conflict means that the object there must
// not be overwritten, or may still change; Stale means that the file changed.
func mayUpload(t *kvtx.Tx, j *record.Job, in *record.ObjectIntent) error {
	const op = "begin object"
	i, err := tree.Inode(t, moraine.InodeID(j.Target))
	if kvtx.MoraineKind(err) == moraine.NotFound {
		return kvtx.Fail(moraine.Stale, op, in.At.String(), "the file was removed")
	}
	if err != nil {
		return err
	}
	if i.Generation != in.Generation {
		return kvtx.Fail(moraine.Stale, op, in.At.String(), "the file has generation %d, but the mover read %d", i.Generation, in.Generation)
	}
	w, err := layout.Owner(&t.View, in.At)
	if err != nil {
		return err
	}
	if err := layout.Settled(w, op, j.Id, t.ClusterTime()); err != nil || w.Object == 0 {
		return err
	}
	o, err := layout.MustObject(&t.View, w.Object)
	if err != nil {
		return err
	}
	if o.MustStay(i.Id) {
		return kvtx.Fail(moraine.Conflict, op, in.At.String(), "other files need object %s: copy it to another key first", o.Id)
	}
	return nil
}

// mayCopy fails if an object may not be copied to a key.
func mayCopy(t *kvtx.Tx, in *record.ObjectIntent) error {
	const op = "begin object"
	o, err := layout.Object(&t.View, in.Object)
	if err != nil {
		return err
	}
	if o == nil || o.At != (record.Place{Bucket: in.At.Bucket, Key: in.Source}) {
		return kvtx.Fail(moraine.Stale, op, in.At.String(), "the object is not at source key %q", in.Source)
	}
	for n, p := range in.Places() {
		w, err := layout.Owner(&t.View, p)
		if err != nil {
			return err
		}
		if err := layout.Settled(w, op, in.Job, t.ClusterTime()); err != nil {
			return err
		}
		if n > 0 || w.Object == 0 {
			continue
		}
		there, err := layout.MustObject(&t.View, w.Object)
		if err != nil {
			return err
		}
		if there.Refs > 0 {
			return kvtx.Fail(moraine.Conflict, op, in.At.String(), "object %s already has the key", w.Object)
		}
	}
	return nil
}

// mayDelete fails if an object may not be deleted.
func mayDelete(t *kvtx.Tx, j *record.Job, in *record.ObjectIntent) error {
	const op = "begin object"
	o, err := layout.Object(&t.View, in.Object)
	if err != nil {
		return err
	}
	switch {
	case o == nil || o.At != in.At || uint64(o.Id) != j.Target:
		return kvtx.Fail(moraine.Stale, op, in.At.String(), "object %s does not have the key", in.Object)
	case o.Refs != 0:
		return kvtx.Fail(moraine.Conflict, op, in.At.String(), "files still need object %s", in.Object)
	}
	w, err := layout.Owner(&t.View, in.At)
	if err != nil {
		return err
	}
	return layout.Settled(w, op, j.Id, t.ClusterTime())
}

// claim records an intent and gives its keys to the job.
func claim(t *kvtx.Tx, in *record.ObjectIntent) error {
	if in.Kind == wire.IntentKind_INTENT_KIND_UPLOAD {
		id, err := t.NextID(record.CObject)
		if err != nil {
			return err
		}
		in.Object = moraine.ObjectID(id)
	}
	for _, p := range in.Places() {
		w, err := layout.Owner(&t.View, p)
		if err != nil {
			return err
		}
		settle(t, w)
		w.Job = in.Job
		if err := layout.PutOwner(t, w); err != nil {
			return err
		}
	}
	t.Put(t.K.ObjectIntent(in.Job), in.Encode())
	t.Count[record.CObjectIntents]++
	return nil
}

// unclaim removes an intent. If until is not 0, its keys are unsettled up
// to then.
func unclaim(t *kvtx.Tx, in *record.ObjectIntent, until uint64) error {
	for _, p := range in.Places() {
		w, err := layout.Owner(&t.View, p)
		if err != nil {
			return err
		}
		w.Job = 0
		if until > 0 {
			settle(t, w)
			w.Until = until
			t.Put(t.K.Unsettled(until, p), []byte{record.ObjectVersion})
			t.Count[record.CUnsettled]++
		}
		if err := layout.PutOwner(t, w); err != nil {
			return err
		}
	}
	t.Del(t.K.ObjectIntent(in.Job))
	t.Count[record.CObjectIntents]--
	return nil
}

// settle records that no change can arrive at a key any more. The caller writes it.
func settle(t *kvtx.Tx, w *record.Owner) {
	if w.Until != 0 {
		t.Del(t.K.Unsettled(w.Until, w.At))
		t.Count[record.CUnsettled]--
		w.Until = 0
	}
}

// loseIntent ends the intent of a copy or delete whose end nobody saw; its lease ends at until. A
// possible copy gets a record, so that a job deletes it even if nothing replaces it.
func loseIntent(t *kvtx.Tx, in *record.ObjectIntent, until uint64) (settled uint64, err error) {
	settled = max(until, t.ClusterTime()) + jobs.SettleMillis(t)
	if err := unclaim(t, in, settled); err != nil || in.Kind != wire.IntentKind_INTENT_KIND_COPY {
		return settled, err
	}
	w, err := layout.Owner(&t.View, in.At)
	if err != nil || w.Object != 0 {
		return settled, err
	}
	of, err := layout.Object(&t.View, in.Object)
	if err != nil {
		return settled, err
	}
	left := &record.Object{At: in.At, Kept: true}
	if of != nil {
		left.Size, left.Crc, left.Tenant = of.Size, of.Crc, of.Tenant
	}
	return settled, recordResidue(t, left, settled+residueDelay)
}

// maxSettled bounds the keys that one Tick settles.
const maxSettled = 64

// SettleKeys settles the unsettled keys whose time has passed.
func SettleKeys(t *kvtx.Tx) error {
	if t.Count[record.CUnsettled] == 0 {
		return nil
	}
	keys, err := t.KeysUnder(t.K.Table(record.TabUnsettled), maxSettled)
	if err != nil {
		return err
	}
	for _, key := range keys {
		if BeU64(key[3:]) > t.ClusterTime() {
			break
		}
		w, err := layout.Owner(&t.View, layout.PlaceOfKey(key[11:]))
		if err != nil {
			return err
		}
		settle(t, w)
		if err := layout.PutOwner(t, w); err != nil {
			return err
		}
	}
	return nil
}

// EndObject settles a job's intent without an object. It is not allowed for a copy or delete of a
// former holder.
func EndObject(t *kvtx.Tx, op *wire.EndObject) (*wire.MetaResponse, error) {
	const name = "end object"
	j, err := HeldMove(t, name, op.GetJob(), op.GetLeaseEpoch(), wire.JobKind_JOB_KIND_FLUSH, wire.JobKind_JOB_KIND_DELETE_OBJECT)
	if err != nil {
		return nil, err
	}
	in, err := ObjectIntent(&t.View, j.Id)
	if err != nil || in == nil {
		return kvtx.Done(), err // the answer was lost
	}
	if in.Kind == wire.IntentKind_INTENT_KIND_UPLOAD {
		if err := layout.DropSums(t, in.Object); err != nil {
			return nil, err
		}
	}
	return kvtx.Done(), unclaim(t, in, 0)
}

// DeletedObject records that the store answered the delete of the job's object.
func DeletedObject(t *kvtx.Tx, op *wire.DeletedObject) (*wire.MetaResponse, error) {
	const name = "deleted object"
	j, err := HeldMove(t, name, op.GetJob(), op.GetLeaseEpoch(), wire.JobKind_JOB_KIND_DELETE_OBJECT)
	if err != nil {
		return nil, err
	}
	o, err := layout.Object(&t.View, moraine.ObjectID(j.Target))
	if err != nil || o == nil {
		return kvtx.Done(), err // the answer was lost
	}
	in, err := ObjectIntent(&t.View, j.Id)
	if err != nil {
		return nil, err
	}
	if in == nil {
		return nil, kvtx.Fail(moraine.Conflict, name, o.At.String(), "the job has not announced a delete")
	}
	if err := unclaim(t, in, 0); err != nil {
		return nil, err
	}
	w, err := layout.Owner(&t.View, o.At)
	if err != nil {
		return nil, err
	}
	w.Object = 0
	if err := layout.PutOwner(t, w); err != nil {
		return nil, err
	}
	return kvtx.Done(), layout.DropObject(t, o)
}
