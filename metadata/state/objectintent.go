package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// DefaultSettleMillis is how long after the end of a lease a change whose reply
// nobody saw may still arrive at the store, in milliseconds of cluster time,
// where a command does not say otherwise: the age up to which a store takes a
// signature.
const DefaultSettleMillis = 15 * 60 * 1000

// objectIntent returns the live intent of a job; nil where it has none.
func (v *view) objectIntent(j moraine.JobID) (*record.ObjectIntent, error) {
	b, ok, err := v.r.Get(v.k.objectIntent(j))
	if err != nil || !ok {
		return nil, err
	}
	in := &record.ObjectIntent{Job: j}
	return in, in.Decode(b)
}

// heldMove returns a job that moves bytes to or from the object tier, of one of
// the kinds, which the caller holds by a lease epoch.
func (t *tx) heldMove(op string, id, epoch uint64, kinds ...wire.JobKind) (*record.Job, error) {
	j, err := t.heldJob(op, id, epoch)
	if err != nil {
		return nil, err
	}
	if !t.holds(j) { // of every feature level
		return nil, fail(moraine.PermissionDenied, op, j.Id.String(), "the lease is %q's", j.Holder)
	}
	for _, k := range kinds {
		if j.Kind == k {
			return j, nil
		}
	}
	return nil, fail(moraine.InvalidArgument, op, j.Id.String(), "not for a %s job", j.Kind)
}

// beginObject announces a change of a key, or says more of one announced.
func (m *Machine) beginObject(t *tx, op *wire.BeginObject) (*wire.MetaResponse, error) {
	const name = "begin object"
	j, err := t.heldMove(name, op.GetJob(), op.GetLeaseEpoch(), wire.JobKind_JOB_KIND_FLUSH, wire.JobKind_JOB_KIND_DELETE_OBJECT)
	if err != nil {
		return nil, err
	}
	want, err := intentFromWire(j, op.GetIntent())
	if err != nil {
		return nil, err
	}
	have, err := t.objectIntent(j.Id)
	if err != nil {
		return nil, err
	}
	if have != nil {
		return m.moreOfIntent(t, have, want)
	}
	if j.Ending != 0 {
		return nil, fail(moraine.Conflict, name, j.Id.String(), "the job only settles what it had begun")
	}
	switch want.Kind {
	case wire.IntentKind_INTENT_KIND_UPLOAD:
		err = m.mayUpload(t, j, want)
	case wire.IntentKind_INTENT_KIND_COPY:
		err = m.mayCopy(t, want)
	default:
		err = m.mayDelete(t, j, want)
	}
	if err != nil {
		return nil, err
	}
	return done(), m.claim(t, want)
}

// intentFromWire holds an intent against what its job may do.
func intentFromWire(j *record.Job, w *wire.ObjectIntent) (*record.ObjectIntent, error) {
	in := &record.ObjectIntent{
		Job: j.Id, Kind: w.GetKind(), At: record.Place{Bucket: w.GetBucket(), Key: w.GetKey()}, Generation: moraine.Generation(w.GetGeneration()),
		UploadID: w.GetUploadId(), Epoch: j.Epoch, Completing: w.GetCompleting(), Etag: w.GetEtag(), Size: w.GetSize(), Crc: w.GetCrc(),
		Source: w.GetSourceKey(), Object: moraine.ObjectID(w.GetObject()),
	}
	const op = "begin object"
	if err := Check(in.At, op); err != nil {
		return nil, err
	}
	bad := func(why string) (*record.ObjectIntent, error) {
		return nil, fail(moraine.InvalidArgument, op, in.At.String(), "%s", why)
	}
	flush := j.Kind == wire.JobKind_JOB_KIND_FLUSH
	switch in.Kind {
	case wire.IntentKind_INTENT_KIND_UPLOAD:
		if !flush || in.Source != "" || in.Object != 0 {
			return bad("an upload is a flush's, and names no other key")
		}
	case wire.IntentKind_INTENT_KIND_COPY:
		if !flush || in.Object == 0 || in.Source == "" || in.Source == in.At.Key {
			return bad("a copy is a flush's, of an object at another key")
		}
		if err := Check((record.Place{Bucket: in.At.Bucket, Key: in.Source}), op); err != nil {
			return nil, err
		}
	case wire.IntentKind_INTENT_KIND_DELETE:
		if flush || in.Object == 0 {
			return bad("a delete is of an object, by its own job")
		}
	default:
		return bad("of no kind")
	}
	if in.Kind != wire.IntentKind_INTENT_KIND_UPLOAD && (in.UploadID != "" || in.Completing) {
		return bad("only an upload has a number, or is completed")
	}
	if len(in.UploadID) > record.MaxToken || len(in.Etag) > record.MaxToken {
		return bad("an upload's number or ETag is too long")
	}
	return in, nil
}

// moreOfIntent adds what has become known of an announced change. What was said
// before must be the same.
func (m *Machine) moreOfIntent(t *tx, have, want *record.ObjectIntent) (*wire.MetaResponse, error) {
	conflict := func(why string) (*wire.MetaResponse, error) {
		return nil, fail(moraine.Conflict, "begin object", have.At.String(), "%s", why)
	}
	switch {
	case have.Kind != want.Kind || have.At != want.At || have.Source != want.Source || have.Generation != want.Generation ||
		(have.Kind != wire.IntentKind_INTENT_KIND_UPLOAD && have.Object != want.Object):
		return conflict("the job has announced another change: settle that first")
	case have.Epoch != want.Epoch:
		return conflict("a former holder of the job announced it: settle that first")
	case have.UploadID != "" && have.UploadID != want.UploadID:
		return conflict("the upload has another number")
	case have.Completing && (!want.Completing || have.Etag != want.Etag || have.Size != want.Size || have.Crc != want.Crc):
		return conflict("the upload is being completed, as something else")
	}
	want.Object = have.Object
	t.put(t.k.objectIntent(have.Job), want.Encode())
	return done(), nil
}

// mayUpload fails where a flush may not write to its key: Conflict where what is
// there must not be overwritten, or may still change; Stale where the file is
// not what it was.
func (m *Machine) mayUpload(t *tx, j *record.Job, in *record.ObjectIntent) error {
	const op = "begin object"
	i, err := t.inode(moraine.InodeID(j.Target))
	if moraineKind(err) == moraine.NotFound {
		return fail(moraine.Stale, op, in.At.String(), "the file was removed")
	}
	if err != nil {
		return err
	}
	if i.Generation != in.Generation {
		return fail(moraine.Stale, op, in.At.String(), "generation is %d, not %d", i.Generation, in.Generation)
	}
	w, err := t.owner(in.At)
	if err != nil {
		return err
	}
	if err := Settled(w, op, j.Id, t.clusterTime()); err != nil || w.Object == 0 {
		return err
	}
	o, err := t.mustObject(w.Object)
	if err != nil {
		return err
	}
	if o.MustStay(i.Id) {
		return fail(moraine.Conflict, op, in.At.String(), "object %s must be copied away first", o.Id)
	}
	return nil
}

// mayCopy fails where an object may not be copied to a key.
func (m *Machine) mayCopy(t *tx, in *record.ObjectIntent) error {
	const op = "begin object"
	o, err := t.object(in.Object)
	if err != nil {
		return err
	}
	if o == nil || o.At != (record.Place{Bucket: in.At.Bucket, Key: in.Source}) {
		return fail(moraine.Stale, op, in.At.String(), "the object is not at %q", in.Source)
	}
	for n, p := range in.Places() {
		w, err := t.owner(p)
		if err != nil {
			return err
		}
		if err := Settled(w, op, in.Job, t.clusterTime()); err != nil {
			return err
		}
		if n > 0 || w.Object == 0 {
			continue
		}
		there, err := t.mustObject(w.Object)
		if err != nil {
			return err
		}
		if there.Refs > 0 {
			return fail(moraine.Conflict, op, in.At.String(), "object %s is there", w.Object)
		}
	}
	return nil
}

// mayDelete fails where an object may not be deleted.
func (m *Machine) mayDelete(t *tx, j *record.Job, in *record.ObjectIntent) error {
	const op = "begin object"
	o, err := t.object(in.Object)
	if err != nil {
		return err
	}
	switch {
	case o == nil || o.At != in.At || uint64(o.Id) != j.Target:
		return fail(moraine.Stale, op, in.At.String(), "object %s is not there", in.Object)
	case o.Refs != 0:
		return fail(moraine.Conflict, op, in.At.String(), "object %s is in use", in.Object)
	}
	w, err := t.owner(in.At)
	if err != nil {
		return err
	}
	return Settled(w, op, j.Id, t.clusterTime())
}

// claim records an intent and makes its keys the job's.
func (m *Machine) claim(t *tx, in *record.ObjectIntent) error {
	if in.Kind == wire.IntentKind_INTENT_KIND_UPLOAD {
		id, err := t.nextID(record.CObject)
		if err != nil {
			return err
		}
		in.Object = moraine.ObjectID(id)
	}
	for _, p := range in.Places() {
		w, err := t.owner(p)
		if err != nil {
			return err
		}
		t.settle(w)
		w.Job = in.Job
		if err := t.putOwner(w); err != nil {
			return err
		}
	}
	t.put(t.k.objectIntent(in.Job), in.Encode())
	t.count[record.CObjectIntents]++
	return nil
}

// unclaim takes an intent away. Where until is not 0 its keys are unsettled up
// to then.
func (m *Machine) unclaim(t *tx, in *record.ObjectIntent, until uint64) error {
	for _, p := range in.Places() {
		w, err := t.owner(p)
		if err != nil {
			return err
		}
		w.Job = 0
		if until > 0 {
			t.settle(w)
			w.Until = until
			t.put(t.k.unsettled(until, p), []byte{record.ObjectVersion})
			t.count[record.CUnsettled]++
		}
		if err := t.putOwner(w); err != nil {
			return err
		}
	}
	t.del(t.k.objectIntent(in.Job))
	t.count[record.CObjectIntents]--
	return nil
}

// settle notes that nothing will arrive at a key any more. The caller writes it.
func (t *tx) settle(w *record.Owner) {
	if w.Until != 0 {
		t.del(t.k.unsettled(w.Until, w.At))
		t.count[record.CUnsettled]--
		w.Until = 0
	}
}

// settleMillis is how long a change whose reply was not seen may still arrive.
func (t *tx) settleMillis() uint64 {
	if t.settleTime != 0 {
		return t.settleTime
	}
	return DefaultSettleMillis
}

// loseIntent gives up a copy or a delete whose end nobody saw, sent under a
// lease that ends at until. What a copy may have made gets a record, so that it
// goes even if nothing takes its place.
func (m *Machine) loseIntent(t *tx, in *record.ObjectIntent, until uint64) (settled uint64, err error) {
	settled = max(until, t.clusterTime()) + t.settleMillis()
	if err := m.unclaim(t, in, settled); err != nil || in.Kind != wire.IntentKind_INTENT_KIND_COPY {
		return settled, err
	}
	w, err := t.owner(in.At)
	if err != nil || w.Object != 0 {
		return settled, err
	}
	of, err := t.object(in.Object)
	if err != nil {
		return settled, err
	}
	left := &record.Object{At: in.At, Kept: true}
	if of != nil {
		left.Size, left.Crc, left.Tenant = of.Size, of.Crc, of.Tenant
	}
	return settled, m.recordResidue(t, left, settled+residueDelay)
}

// maxSettled bounds how many keys one Tick finds settled.
const maxSettled = 64

// settleKeys forgets that keys were unsettled whose time has passed.
func (m *Machine) settleKeys(t *tx) error {
	if t.count[record.CUnsettled] == 0 {
		return nil
	}
	keys, err := t.keysUnder(t.k.table(record.TabUnsettled), maxSettled)
	if err != nil {
		return err
	}
	for _, key := range keys {
		if beU64(key[3:]) > t.clusterTime() {
			break
		}
		w, err := t.owner(placeOfKey(key[11:]))
		if err != nil {
			return err
		}
		t.settle(w)
		if err := t.putOwner(w); err != nil {
			return err
		}
	}
	return nil
}

// endObject settles a job's intent without an object: nothing came of it. It
// may not be said of a copy or a delete of a former holder.
func (m *Machine) endObject(t *tx, op *wire.EndObject) (*wire.MetaResponse, error) {
	const name = "end object"
	j, err := t.heldMove(name, op.GetJob(), op.GetLeaseEpoch(), wire.JobKind_JOB_KIND_FLUSH, wire.JobKind_JOB_KIND_DELETE_OBJECT)
	if err != nil {
		return nil, err
	}
	in, err := t.objectIntent(j.Id)
	if err != nil || in == nil {
		return done(), err // the answer was lost
	}
	if in.Kind == wire.IntentKind_INTENT_KIND_UPLOAD {
		if err := t.dropSums(in.Object); err != nil {
			return nil, err
		}
	}
	return done(), m.unclaim(t, in, 0)
}

// deletedObject records that the store answered the delete of the job's object.
func (m *Machine) deletedObject(t *tx, op *wire.DeletedObject) (*wire.MetaResponse, error) {
	const name = "deleted object"
	j, err := t.heldMove(name, op.GetJob(), op.GetLeaseEpoch(), wire.JobKind_JOB_KIND_DELETE_OBJECT)
	if err != nil {
		return nil, err
	}
	o, err := t.object(moraine.ObjectID(j.Target))
	if err != nil || o == nil {
		return done(), err // the answer was lost
	}
	in, err := t.objectIntent(j.Id)
	if err != nil {
		return nil, err
	}
	if in == nil {
		return nil, fail(moraine.Conflict, name, o.At.String(), "the job has announced no delete")
	}
	if err := m.unclaim(t, in, 0); err != nil {
		return nil, err
	}
	w, err := t.owner(o.At)
	if err != nil {
		return nil, err
	}
	w.Object = 0
	if err := t.putOwner(w); err != nil {
		return nil, err
	}
	return done(), m.dropObject(t, o)
}
