package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// DefaultSettleMillis is how long after the end of a lease a change whose reply
// nobody saw may still arrive at the store, in milliseconds of cluster time,
// where a command does not say otherwise: the age up to which a store takes a
// signature.
const DefaultSettleMillis = 15 * 60 * 1000

// objectIntent is a recorded wish of a job to change one key of a bucket. It is
// in the state before the store is asked, so that the successor of a mover that
// went away knows what may have happened. A job has one at most.
//
// What an upload that nobody finished leaves behind is found by its number, or
// among all uploads of its key, and aborted; whether one was completed HEAD
// tells. A copy or a delete can be neither aborted nor told from one that will
// still arrive: where its end was not seen, its keys are unsettled until it
// cannot arrive any more.
type objectIntent struct {
	job        moraine.JobID // in the key
	kind       wire.IntentKind
	at         place
	generation moraine.Generation
	uploadID   string
	epoch      uint64 // of the lease that it was made under
	completing bool
	etag       string
	size       uint64
	crc        uint32
	source     string           // COPY: the key that is copied
	object     moraine.ObjectID // UPLOAD: the number it will have; else whose bytes
}

func (in *objectIntent) encode() []byte {
	b := append([]byte{objectVersion}, byte(in.kind))
	b = putString(b, in.at.bucket)
	b = putString(b, in.at.key)
	b = putFixed64(b, uint64(in.generation))
	b = putString(b, in.uploadID)
	b = putUvarint(b, in.epoch)
	b = putBool(b, in.completing)
	b = putString(b, in.etag)
	b = putUvarint(b, in.size)
	b = putFixed32(b, in.crc)
	b = putString(b, in.source)
	return putFixed64(b, uint64(in.object))
}

func (in *objectIntent) decode(b []byte) error {
	d := dec{b: b}
	d.version(objectVersion)
	in.kind = wire.IntentKind(d.byte())
	in.at = place{d.string(), d.string()}
	in.generation = moraine.Generation(d.fixed64())
	in.uploadID = d.string()
	in.epoch = d.uvarint()
	in.completing = d.bool()
	in.etag = d.string()
	in.size = d.uvarint()
	in.crc = d.fixed32()
	in.source = d.string()
	in.object = moraine.ObjectID(d.fixed64())
	return d.end("intent for a key")
}

func (in *objectIntent) toWire() *wire.ObjectIntent {
	return &wire.ObjectIntent{
		Kind: in.kind, Bucket: in.at.bucket, Key: in.at.key, Generation: uint64(in.generation), UploadId: in.uploadID,
		LeaseEpoch: in.epoch, Completing: in.completing, Etag: in.etag, Size: in.size, Crc: in.crc, SourceKey: in.source, Object: uint64(in.object),
	}
}

// places are the keys that the intent claims.
func (in *objectIntent) places() []place {
	if in.kind == wire.IntentKind_INTENT_KIND_COPY {
		return []place{in.at, {in.at.bucket, in.source}}
	}
	return []place{in.at}
}

// objectIntent returns the live intent of a job; nil where it has none.
func (v *view) objectIntent(j moraine.JobID) (*objectIntent, error) {
	b, ok, err := v.r.Get(v.k.objectIntent(j))
	if err != nil || !ok {
		return nil, err
	}
	in := &objectIntent{job: j}
	return in, in.decode(b)
}

// heldMove returns a job that moves bytes to or from the object tier, of one of
// the kinds, which the caller holds by a lease epoch.
func (t *tx) heldMove(op string, id, epoch uint64, kinds ...wire.JobKind) (*job, error) {
	j, err := t.heldJob(op, id, epoch)
	if err != nil {
		return nil, err
	}
	if !t.holds(j) { // of every feature level
		return nil, fail(moraine.PermissionDenied, op, j.id.String(), "the lease is %q's", j.holder)
	}
	for _, k := range kinds {
		if j.kind == k {
			return j, nil
		}
	}
	return nil, fail(moraine.InvalidArgument, op, j.id.String(), "not for a %s job", j.kind)
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
	have, err := t.objectIntent(j.id)
	if err != nil {
		return nil, err
	}
	if have != nil {
		return m.moreOfIntent(t, have, want)
	}
	if j.ending != 0 {
		return nil, fail(moraine.Conflict, name, j.id.String(), "the job only settles what it had begun")
	}
	switch want.kind {
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
func intentFromWire(j *job, w *wire.ObjectIntent) (*objectIntent, error) {
	in := &objectIntent{
		job: j.id, kind: w.GetKind(), at: place{w.GetBucket(), w.GetKey()}, generation: moraine.Generation(w.GetGeneration()),
		uploadID: w.GetUploadId(), epoch: j.epoch, completing: w.GetCompleting(), etag: w.GetEtag(), size: w.GetSize(), crc: w.GetCrc(),
		source: w.GetSourceKey(), object: moraine.ObjectID(w.GetObject()),
	}
	const op = "begin object"
	if err := in.at.check(op); err != nil {
		return nil, err
	}
	bad := func(why string) (*objectIntent, error) {
		return nil, fail(moraine.InvalidArgument, op, in.at.String(), "%s", why)
	}
	flush := j.kind == wire.JobKind_JOB_KIND_FLUSH
	switch in.kind {
	case wire.IntentKind_INTENT_KIND_UPLOAD:
		if !flush || in.source != "" || in.object != 0 {
			return bad("an upload is a flush's, and names no other key")
		}
	case wire.IntentKind_INTENT_KIND_COPY:
		if !flush || in.object == 0 || in.source == "" || in.source == in.at.key {
			return bad("a copy is a flush's, of an object at another key")
		}
		if err := (place{in.at.bucket, in.source}).check(op); err != nil {
			return nil, err
		}
	case wire.IntentKind_INTENT_KIND_DELETE:
		if flush || in.object == 0 {
			return bad("a delete is of an object, by its own job")
		}
	default:
		return bad("of no kind")
	}
	if in.kind != wire.IntentKind_INTENT_KIND_UPLOAD && (in.uploadID != "" || in.completing) {
		return bad("only an upload has a number, or is completed")
	}
	if len(in.uploadID) > maxToken || len(in.etag) > maxToken {
		return bad("an upload's number or ETag is too long")
	}
	return in, nil
}

// moreOfIntent adds what has become known of an announced change. What was said
// before must be the same.
func (m *Machine) moreOfIntent(t *tx, have, want *objectIntent) (*wire.MetaResponse, error) {
	conflict := func(why string) (*wire.MetaResponse, error) {
		return nil, fail(moraine.Conflict, "begin object", have.at.String(), "%s", why)
	}
	switch {
	case have.kind != want.kind || have.at != want.at || have.source != want.source || have.generation != want.generation ||
		(have.kind != wire.IntentKind_INTENT_KIND_UPLOAD && have.object != want.object):
		return conflict("the job has announced another change: settle that first")
	case have.epoch != want.epoch:
		return conflict("a former holder of the job announced it: settle that first")
	case have.uploadID != "" && have.uploadID != want.uploadID:
		return conflict("the upload has another number")
	case have.completing && (!want.completing || have.etag != want.etag || have.size != want.size || have.crc != want.crc):
		return conflict("the upload is being completed, as something else")
	}
	want.object = have.object
	t.put(t.k.objectIntent(have.job), want.encode())
	return done(), nil
}

// mayUpload fails where a flush may not write to its key: Conflict where what is
// there must not be overwritten, or may still change; Stale where the file is
// not what it was.
func (m *Machine) mayUpload(t *tx, j *job, in *objectIntent) error {
	const op = "begin object"
	i, err := t.inode(moraine.InodeID(j.target))
	if moraineKind(err) == moraine.NotFound {
		return fail(moraine.Stale, op, in.at.String(), "the file was removed")
	}
	if err != nil {
		return err
	}
	if i.generation != in.generation {
		return fail(moraine.Stale, op, in.at.String(), "generation is %d, not %d", i.generation, in.generation)
	}
	w, err := t.owner(in.at)
	if err != nil {
		return err
	}
	if err := w.settled(op, j.id, t.clusterTime()); err != nil || w.object == 0 {
		return err
	}
	o, err := t.mustObject(w.object)
	if err != nil {
		return err
	}
	if o.mustStay(i.id) {
		return fail(moraine.Conflict, op, in.at.String(), "object %s must be copied away first", o.id)
	}
	return nil
}

// mustStay reports whether a flush of an inode must not overwrite the object:
// something reads from it, or it is the newest of another file.
func (o *object) mustStay(flushed moraine.InodeID) bool {
	return o.tables() > 0 || (o.newest && o.inode != flushed)
}

// mayCopy fails where an object may not be copied to a key.
func (m *Machine) mayCopy(t *tx, in *objectIntent) error {
	const op = "begin object"
	o, err := t.object(in.object)
	if err != nil {
		return err
	}
	if o == nil || o.at != (place{in.at.bucket, in.source}) {
		return fail(moraine.Stale, op, in.at.String(), "the object is not at %q", in.source)
	}
	for n, p := range in.places() {
		w, err := t.owner(p)
		if err != nil {
			return err
		}
		if err := w.settled(op, in.job, t.clusterTime()); err != nil {
			return err
		}
		if n > 0 || w.object == 0 {
			continue
		}
		there, err := t.mustObject(w.object)
		if err != nil {
			return err
		}
		if there.refs > 0 {
			return fail(moraine.Conflict, op, in.at.String(), "object %s is there", w.object)
		}
	}
	return nil
}

// mayDelete fails where an object may not be deleted.
func (m *Machine) mayDelete(t *tx, j *job, in *objectIntent) error {
	const op = "begin object"
	o, err := t.object(in.object)
	if err != nil {
		return err
	}
	switch {
	case o == nil || o.at != in.at || uint64(o.id) != j.target:
		return fail(moraine.Stale, op, in.at.String(), "object %s is not there", in.object)
	case o.refs != 0:
		return fail(moraine.Conflict, op, in.at.String(), "object %s is in use", in.object)
	}
	w, err := t.owner(in.at)
	if err != nil {
		return err
	}
	return w.settled(op, j.id, t.clusterTime())
}

// claim records an intent and makes its keys the job's.
func (m *Machine) claim(t *tx, in *objectIntent) error {
	if in.kind == wire.IntentKind_INTENT_KIND_UPLOAD {
		id, err := t.nextID(cObject)
		if err != nil {
			return err
		}
		in.object = moraine.ObjectID(id)
	}
	for _, p := range in.places() {
		w, err := t.owner(p)
		if err != nil {
			return err
		}
		t.settle(w)
		w.job = in.job
		if err := t.putOwner(w); err != nil {
			return err
		}
	}
	t.put(t.k.objectIntent(in.job), in.encode())
	t.count[cObjectIntents]++
	return nil
}

// unclaim takes an intent away. Where until is not 0 its keys are unsettled up
// to then.
func (m *Machine) unclaim(t *tx, in *objectIntent, until uint64) error {
	for _, p := range in.places() {
		w, err := t.owner(p)
		if err != nil {
			return err
		}
		w.job = 0
		if until > 0 {
			t.settle(w)
			w.until = until
			t.put(t.k.unsettled(until, p), []byte{objectVersion})
			t.count[cUnsettled]++
		}
		if err := t.putOwner(w); err != nil {
			return err
		}
	}
	t.del(t.k.objectIntent(in.job))
	t.count[cObjectIntents]--
	return nil
}

// settle notes that nothing will arrive at a key any more. The caller writes it.
func (t *tx) settle(w *owner) {
	if w.until != 0 {
		t.del(t.k.unsettled(w.until, w.at))
		t.count[cUnsettled]--
		w.until = 0
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
func (m *Machine) loseIntent(t *tx, in *objectIntent, until uint64) (settled uint64, err error) {
	settled = max(until, t.clusterTime()) + t.settleMillis()
	if err := m.unclaim(t, in, settled); err != nil || in.kind != wire.IntentKind_INTENT_KIND_COPY {
		return settled, err
	}
	w, err := t.owner(in.at)
	if err != nil || w.object != 0 {
		return settled, err
	}
	of, err := t.object(in.object)
	if err != nil {
		return settled, err
	}
	left := &object{at: in.at, kept: true}
	if of != nil {
		left.size, left.crc, left.tenant = of.size, of.crc, of.tenant
	}
	return settled, m.recordResidue(t, left, settled+residueDelay)
}

// maxSettled bounds how many keys one Tick finds settled.
const maxSettled = 64

// settleKeys forgets that keys were unsettled whose time has passed.
func (m *Machine) settleKeys(t *tx) error {
	if t.count[cUnsettled] == 0 {
		return nil
	}
	keys, err := t.keysUnder(t.k.table(tabUnsettled), maxSettled)
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
	in, err := t.objectIntent(j.id)
	if err != nil || in == nil {
		return done(), err // the answer was lost
	}
	if in.kind == wire.IntentKind_INTENT_KIND_UPLOAD {
		if err := t.dropSums(in.object); err != nil {
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
	o, err := t.object(moraine.ObjectID(j.target))
	if err != nil || o == nil {
		return done(), err // the answer was lost
	}
	in, err := t.objectIntent(j.id)
	if err != nil {
		return nil, err
	}
	if in == nil {
		return nil, fail(moraine.Conflict, name, o.at.String(), "the job has announced no delete")
	}
	if err := m.unclaim(t, in, 0); err != nil {
		return nil, err
	}
	w, err := t.owner(o.at)
	if err != nil {
		return nil, err
	}
	w.object = 0
	if err := t.putOwner(w); err != nil {
		return nil, err
	}
	return done(), m.dropObject(t, o)
}
