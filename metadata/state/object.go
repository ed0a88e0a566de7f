package state

import (
	"fmt"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

func placeOfKey(rest []byte) (p record.Place) {
	p.Bucket, p.Key, _ = strings.Cut(string(rest), "\x00")
	return p
}

func Check(p record.Place, op string) error {
	switch {
	case p.Bucket == "" || p.Key == "":
		return fail(moraine.InvalidArgument, op, p.String(), "bucket and key are needed")
	case len(p.Bucket) > record.MaxBucket || len(p.Key) > record.MaxObjectKey:
		return fail(moraine.NameTooLong, op, p.String(), "a key has %d bytes at most", record.MaxObjectKey)
	case strings.IndexByte(p.Bucket, 0) >= 0 || strings.IndexByte(p.Key, 0) >= 0:
		return fail(moraine.InvalidArgument, op, p.String(), "a key holds no NUL")
	}
	return nil
}

// object returns an object's record; nil where there is none.
func (v *view) object(id moraine.ObjectID) (*record.Object, error) {
	b, ok, err := v.r.Get(v.k.object(id))
	if err != nil || !ok {
		return nil, err
	}
	o := &record.Object{Id: id}
	return o, o.Decode(b)
}

// mustObject returns an object that another record refers to.
func (v *view) mustObject(id moraine.ObjectID) (*record.Object, error) {
	o, err := v.object(id)
	if err == nil && o == nil {
		err = &moraine.Error{Op: "object", Ref: id.String(), Kind: moraine.Corrupt, Err: fmt.Errorf("a record refers to it and it has none")}
	}
	return o, err
}

func (t *tx) putObject(o *record.Object) { t.put(t.k.object(o.Id), o.Encode()) }

// useObject counts one more table that refers to an object.
func (t *tx) useObject(id moraine.ObjectID) error {
	o, err := t.mustObject(id)
	if err != nil {
		return err
	}
	o.Refs++
	t.putObject(o)
	return nil
}

// releaseObject counts one user less; at 0 a job deletes the object.
func (m *Machine) releaseObject(t *tx, id moraine.ObjectID) error {
	o, err := t.mustObject(id)
	if err != nil {
		return err
	}
	return m.release1(t, o, false)
}

// releaseNewest notes that an object is not the newest of its inode any more.
// The caller writes the inode.
func (m *Machine) releaseNewest(t *tx, i *record.Inode) error {
	o, err := t.mustObject(i.Object)
	if err != nil {
		return err
	}
	i.Object, i.ObjectGen = 0, 0
	return m.release1(t, o, true)
}

func (m *Machine) release1(t *tx, o *record.Object, newest bool) (err error) {
	o.Refs--
	if newest {
		o.Newest = false
	}
	if o.Refs == 0 {
		if err := t.forgetBad(o); err != nil {
			return err
		}
		err = m.condemn(t, o, 0)
	}
	t.putObject(o)
	return err
}

// condemn has a job delete an object that nothing refers to, not before a
// cluster time. The caller writes the object.
func (m *Machine) condemn(t *tx, o *record.Object, after uint64) (err error) {
	o.Job, err = m.addJob(t, jobSpec{kind: wire.JobKind_JOB_KIND_DELETE_OBJECT, subject: record.Clip(o.At.Key, moraine.MaxNameLen),
		target: uint64(o.Id), after: after})
	return err
}

// dropObject takes an object's record and its sums away: its bytes are gone, or
// others are in their place. The key is the caller's. The job that was to
// delete it is over.
func (m *Machine) dropObject(t *tx, o *record.Object) error {
	if err := t.forgetBad(o); err != nil {
		return err
	}
	t.del(t.k.object(o.Id))
	t.count[record.CObjects]--
	t.count[record.CObjectBytes] -= o.Size
	if err := t.dropSums(o.Id); err != nil {
		return err
	}
	if o.Job == 0 {
		return nil
	}
	j, err := t.job(o.Job)
	if err != nil || j == nil || j.State != wire.JobState_JOB_STATE_PENDING {
		return err // who holds it finds the object gone
	}
	return m.endJob(t, j, wire.JobState_JOB_STATE_DONE, "")
}

func (v *view) sums(id moraine.ObjectID, block uint64) ([]uint32, error) {
	b, ok, err := v.r.Get(v.k.objectSum(id, block))
	if err != nil || !ok {
		return nil, err
	}
	return record.DecodeSums(b)
}

// dropSums forgets all sums of an object.
func (t *tx) dropSums(id moraine.ObjectID) error {
	keys, err := t.keysUnder(t.k.objectSums(id), record.MaxPieces/record.SumsPerBlock)
	for _, key := range keys {
		t.del(key)
	}
	return err
}

// owner returns whose a key is; a zero one where it is nobody's.
func (v *view) owner(p record.Place) (*record.Owner, error) {
	w := &record.Owner{At: p}
	b, ok, err := v.r.Get(v.k.objectKey(p))
	if err != nil || !ok {
		return w, err
	}
	return w, w.Decode(b)
}

// putOwner writes whose a key is, which may be nobody.
func (t *tx) putOwner(w *record.Owner) error {
	if w.Object != 0 || w.Job != 0 || w.Until != 0 {
		t.put(t.k.objectKey(w.At), w.Encode())
		return nil
	}
	t.del(t.k.objectKey(w.At))
	index, ok, err := t.removedIndexBeside(w.At)
	if ok && index == w.At {
		t.del(t.k.removedIndex(w.At.Beside()))
	}
	return err
}

// Settled fails with Conflict where a change of the key by another job than j
// is under way, or may still arrive.
func Settled(w *record.Owner, op string, j moraine.JobID, now uint64) error {
	switch {
	case w.Job != 0 && w.Job != j:
		return fail(moraine.Conflict, op, w.At.String(), "job %s changes the key", w.Job)
	case w.Until > now:
		return fail(moraine.Conflict, op, w.At.String(), "a change whose reply was not seen may still arrive for %d s", (w.Until-now+999)/1000)
	}
	return nil
}
