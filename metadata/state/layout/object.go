package layout

import (
	"fmt"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// PlaceOfKey decodes the place at the end of a key.
func PlaceOfKey(rest []byte) (p record.Place) {
	p.Bucket, p.Key, _ = strings.Cut(string(rest), "\x00")
	return p
}

// Check fails if the bucket or key of a place is empty, too long, or has a NUL byte.
func Check(p record.Place, op string) error {
	switch {
	case p.Bucket == "" || p.Key == "":
		return kvtx.Fail(moraine.InvalidArgument, op, p.String(), "the request needs a bucket and a key")
	case len(p.Bucket) > record.MaxBucket || len(p.Key) > record.MaxObjectKey:
		return kvtx.Fail(moraine.NameTooLong, op, p.String(), "the bucket has at most %d bytes, and the key %d", record.MaxBucket, record.MaxObjectKey)
	case strings.IndexByte(p.Bucket, 0) >= 0 || strings.IndexByte(p.Key, 0) >= 0:
		return kvtx.Fail(moraine.InvalidArgument, op, p.String(), "the bucket and the key must not contain NUL")
	}
	return nil
}

// Object returns an object's record; nil if there is none.
func Object(v *kvtx.View, id moraine.ObjectID) (*record.Object, error) {
	b, ok, err := v.R.Get(v.K.Object(id))
	if err != nil || !ok {
		return nil, err
	}
	o := &record.Object{Id: id}
	return o, o.Decode(b)
}

// MustObject returns an object that another record refers to.
func MustObject(v *kvtx.View, id moraine.ObjectID) (*record.Object, error) {
	o, err := Object(v, id)
	if err == nil && o == nil {
		err = &moraine.Error{Op: "object", Ref: id.String(), Kind: moraine.Corrupt, Err: fmt.Errorf("a record refers to the object, which has no record")}
	}
	return o, err
}

// PutObject writes an object's record.
func PutObject(t *kvtx.Tx, o *record.Object) { t.Put(t.K.Object(o.Id), o.Encode()) }

// useObject counts one more table that refers to an object.
func useObject(t *kvtx.Tx, id moraine.ObjectID) error {
	o, err := MustObject(&t.View, id)
	if err != nil {
		return err
	}
	o.Refs++
	PutObject(t, o)
	return nil
}

// releaseObject removes one user; at 0 a job deletes the object.
func releaseObject(t *kvtx.Tx, id moraine.ObjectID) error {
	o, err := MustObject(&t.View, id)
	if err != nil {
		return err
	}
	return release1(t, o, false)
}

// ReleaseNewest records that an object is no longer the newest of its inode. The caller writes the
// inode.
func ReleaseNewest(t *kvtx.Tx, i *record.Inode) error {
	o, err := MustObject(&t.View, i.Object)
	if err != nil {
		return err
	}
	i.Object, i.ObjectGen = 0, 0
	return release1(t, o, true)
}

// release1 removes one user of an object; newest says that the user is its inode.
func release1(t *kvtx.Tx, o *record.Object, newest bool) (err error) {
	o.Refs--
	if newest {
		o.Newest = false
	}
	if o.Refs == 0 {
		if err := ForgetBad(t, o); err != nil {
			return err
		}
		err = Condemn(t, o, 0)
	}
	PutObject(t, o)
	return err
}

// Condemn queues a job that deletes an unreferenced object, at the cluster time after or later. The
// caller writes the object.
func Condemn(t *kvtx.Tx, o *record.Object, after uint64) (err error) {
	o.Job, err = jobs.AddJob(t, jobs.JobSpec{Kind: wire.JobKind_JOB_KIND_DELETE_OBJECT, Subject: record.Clip(o.At.Key, moraine.MaxNameLen),
		Target: uint64(o.Id), After: after})
	return err
}

// DropObject deletes an object's record and checksums, because its bytes are gone or overwritten.
// The caller writes the key's owner. The job that would delete the object ends.
func DropObject(t *kvtx.Tx, o *record.Object) error {
	if err := ForgetBad(t, o); err != nil {
		return err
	}
	t.Del(t.K.Object(o.Id))
	t.Count[record.CObjects]--
	t.Count[record.CObjectBytes] -= o.Size
	if err := DropSums(t, o.Id); err != nil {
		return err
	}
	if o.Job == 0 {
		return nil
	}
	j, err := jobs.Job(&t.View, o.Job)
	if err != nil || j == nil || j.State != wire.JobState_JOB_STATE_PENDING {
		return err // its holder finds the object gone
	}
	return jobs.EndJob(t, j, wire.JobState_JOB_STATE_DONE, "")
}

// Sums returns a block of an object's piece checksums.
func Sums(v *kvtx.View, id moraine.ObjectID, block uint64) ([]uint32, error) {
	b, ok, err := v.R.Get(v.K.ObjectSum(id, block))
	if err != nil || !ok {
		return nil, err
	}
	return record.DecodeSums(b)
}

// DropSums deletes all checksums of an object.
func DropSums(t *kvtx.Tx, id moraine.ObjectID) error {
	keys, err := t.KeysUnder(t.K.ObjectSums(id), record.MaxPieces/record.SumsPerBlock)
	for _, key := range keys {
		t.Del(key)
	}
	return err
}

// Owner returns the owner of a key; a zero one if there is none.
func Owner(v *kvtx.View, p record.Place) (*record.Owner, error) {
	w := &record.Owner{At: p}
	b, ok, err := v.R.Get(v.K.ObjectKey(p))
	if err != nil || !ok {
		return w, err
	}
	return w, w.Decode(b)
}

// PutOwner writes a key's owner, or deletes the row if nothing owns the key.
func PutOwner(t *kvtx.Tx, w *record.Owner) error {
	if w.Object != 0 || w.Job != 0 || w.Until != 0 {
		t.Put(t.K.ObjectKey(w.At), w.Encode())
		return nil
	}
	t.Del(t.K.ObjectKey(w.At))
	index, ok, err := RemovedIndexBeside(&t.View, w.At)
	if ok && index == w.At {
		t.Del(t.K.RemovedIndex(w.At.Beside()))
	}
	return err
}

// Settled fails with Conflict if a job other than j is changing the key, or its change may still
// arrive.
func Settled(w *record.Owner, op string, j moraine.JobID, now uint64) error {
	switch {
	case w.Job != 0 && w.Job != j:
		return kvtx.Fail(moraine.Conflict, op, w.At.String(), "job %s changes the key now", w.Job)
	case w.Until > now:
		return kvtx.Fail(moraine.Conflict, op, w.At.String(), "an earlier change of the key may still arrive: try again in %d s", (w.Until-now+999)/1000)
	}
	return nil
}

// BadObject returns the row of a bad object; nil if it has none.
func BadObject(v *kvtx.View, id moraine.ObjectID) (*record.BadObject, error) {
	value, ok, err := v.R.Get(v.K.BadObject(id))
	if err != nil || !ok {
		return nil, err
	}
	return record.DecodeBadObject(value)
}

// ForgetBad deletes an object's row in the table of bad objects, if it has one.
func ForgetBad(t *kvtx.Tx, o *record.Object) error {
	b, err := BadObject(&t.View, o.Id)
	if err != nil || b == nil {
		return err
	}
	t.Del(t.K.BadObject(o.Id))
	t.Count[record.CBadObjects]--
	t.LossChanged()
	return nil
}

// RemovedIndexBeside returns the key of the removed index in the directory of a key; false if there
// is none.
func RemovedIndexBeside(v *kvtx.View, at record.Place) (index record.Place, ok bool, err error) {
	value, ok, err := v.R.Get(v.K.RemovedIndex(at.Beside()))
	if err != nil || !ok {
		return record.Place{}, false, err
	}
	key, err := record.DecodeRemovedIndex(value)
	return record.Place{Bucket: at.Bucket, Key: key}, true, err
}
