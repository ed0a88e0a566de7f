package tier

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// IsBad reports whether an object is recorded as bad.
func IsBad(v *kvtx.View, id moraine.ObjectID) (bool, error) {
	if id == 0 {
		return false, nil
	}
	b, err := layout.BadObject(v, id)
	return b != nil, err
}

// judgeObject returns how a report changes an object's row. changed is false if it changes nothing;
// b is nil if the object is good again. A report that names another object at the key, or another
// key, than the record changes nothing.
func judgeObject(v *kvtx.View, w *wire.ObjectCheck) (o *record.Object, b *record.BadObject, changed bool, err error) {
	o, err = layout.Object(v, moraine.ObjectID(w.GetObject().GetId()))
	if err != nil || o == nil || o.Refs == 0 {
		return nil, nil, false, err
	}
	said := w.GetObject()
	if o.At != (record.Place{Bucket: said.GetBucket(), Key: said.GetKey()}) || o.Version != said.GetVersion() || o.Etag != said.GetEtag() {
		return nil, nil, false, nil
	}
	old, err := layout.BadObject(v, o.Id)
	if err != nil {
		return nil, nil, false, err
	}
	b = &record.BadObject{State: w.GetState(), Text: record.Clip(w.GetError(), record.MaxBadText)}
	switch w.GetState() {
	case wire.ObjectState_OBJECT_STATE_GOOD:
		// A HEAD does not show whether a damaged piece is good again: the host must have read that
		// piece.
		heals := old != nil && (old.State != wire.ObjectState_OBJECT_STATE_CORRUPT || w.GetRead() && w.GetOffset() == old.Offset)
		return o, nil, heals, nil
	case wire.ObjectState_OBJECT_STATE_CORRUPT:
		if o.Piece == 0 || w.GetOffset() >= o.Size || w.GetOffset()%o.Piece != 0 {
			return o, nil, false, nil
		}
		b.Offset = w.GetOffset()
	case wire.ObjectState_OBJECT_STATE_MISSING, wire.ObjectState_OBJECT_STATE_DIFFERS:
	default:
		return o, nil, false, nil
	}
	return o, b, old == nil || old.State != b.State, nil
}

// ReportObjects records what hosts found in their bucket.
func ReportObjects(t *kvtx.Tx, op *wire.ReportObjects) (*wire.MetaResponse, error) {
	if len(op.GetChecks()) > record.MaxReportedObjects {
		return nil, kvtx.Fail(moraine.TooLarge, "report objects", "", "the command has %d objects, %d at most", len(op.GetChecks()), record.MaxReportedObjects)
	}
	for _, w := range op.GetChecks() {
		o, b, changed, err := judgeObject(&t.View, w)
		if err != nil {
			return nil, err
		}
		if !changed {
			continue
		}
		if b == nil {
			if err := layout.ForgetBad(t, o); err != nil {
				return nil, err
			}
			continue
		}
		known, err := IsBad(&t.View, o.Id)
		if err != nil {
			return nil, err
		}
		if !known {
			t.Count[record.CBadObjects]++
			t.LossChanged()
		}
		b.Since = t.ClusterTime()
		t.Put(t.K.BadObject(o.Id), b.Encode())
	}
	return kvtx.Done(), nil
}

// ObjectsChange returns the objects of a report whose record the report changes.
func ObjectsChange(v *kvtx.View, checks []*wire.ObjectCheck) (out []*wire.ObjectCheck, err error) {
	for _, w := range checks {
		_, _, changed, err := judgeObject(v, w)
		if err != nil {
			return nil, err
		}
		if changed {
			out = append(out, w)
		}
	}
	return out, nil
}

// EachBad calls fn with the bad objects after one, in order of their numbers, until fn returns
// false.
func EachBad(v *kvtx.View, after moraine.ObjectID, fn func(o *record.Object, b *record.BadObject) (more bool, err error)) error {
	prefix := v.K.Table(record.TabBadObject)
	return v.Each(append(v.K.BadObject(after), 0), kvtx.PrefixEnd(prefix), func(key, value []byte) (bool, error) {
		b, err := record.DecodeBadObject(value)
		if err != nil {
			return false, err
		}
		o, err := layout.MustObject(v, moraine.ObjectID(record.LastU64(key)))
		if err != nil {
			return false, err
		}
		return fn(o, b)
	})
}

// Harms reports whether a bad object matters. Either some bytes of files are
// only in it, or it must be the copy of a file's current content. An object of
// older content waits for the next flush.
func Harms(v *kvtx.View, o *record.Object) (bool, error) {
	if o.Tables() > 0 {
		return true, nil
	}
	i, err := tree.ReadInode(v, o.Inode)
	if kvtx.MoraineKind(err) == moraine.NotFound {
		return false, nil
	}
	return err == nil && i.Object == o.Id && i.Clean(), err
}

// lostCopy reports whether the object of a clean file is bad while no bytes of files are only in
// it. Another flush then uploads it again.
func lostCopy(v *kvtx.View, i *record.Inode) (bool, error) {
	if bad, err := IsBad(v, i.Object); !bad || err != nil {
		return false, err
	}
	o, err := layout.MustObject(v, i.Object)
	return err == nil && o.Tables() == 0, err
}

// CountBadObjects counts the bad objects that matter, and inspects at most most of them. lost are
// those that alone have bytes of files.
func CountBadObjects(v *kvtx.View, most int) (lost, bad int, err error) {
	err = EachBad(v, 0, func(o *record.Object, _ *record.BadObject) (bool, error) {
		harms, err := Harms(v, o)
		switch {
		case o.Tables() > 0:
			lost++
		case harms:
			bad++
		}
		most--
		return most > 0, err
	})
	return lost, bad, err
}

// BadObjectsOf returns up to limit bad objects of a bucket, after one, to be compared again. It
// inspects at most most objects; next is where to continue, 0 for the beginning.
func BadObjectsOf(r *kvtx.View, bucket string, after moraine.ObjectID, limit, most int) (out []*wire.ObjectToCheck, next moraine.ObjectID, err error) {
	err = EachBad(r, after, func(o *record.Object, b *record.BadObject) (bool, error) {
		if len(out) == limit || most == 0 {
			return false, nil
		}
		most--
		next = o.Id
		if o.At.Bucket == bucket {
			out = append(out, &wire.ObjectToCheck{Object: o.ToWire(), Read: b.State == wire.ObjectState_OBJECT_STATE_CORRUPT, Offset: b.Offset})
		}
		return true, nil
	})
	if len(out) < limit && most > 0 {
		next = 0
	}
	return out, next, err
}

// ObjectsOf returns up to limit referenced objects of a bucket after a key, and the last key that
// it inspected. It inspects at most most keys; more is false at the end.
func ObjectsOf(v *kvtx.View, bucket, after string, limit, most int) (out []*wire.Object, last string, more bool, err error) {
	last = after
	lo := v.K.ObjectKey(record.Place{Bucket: bucket, Key: after})
	if after != "" {
		lo = append(lo, 0)
	}
	err = v.Each(lo, kvtx.PrefixEnd(v.K.ObjectKey(record.Place{Bucket: bucket, Key: ""})), func(key, value []byte) (bool, error) {
		if more = len(out) == limit || most == 0; more {
			return false, nil
		}
		most--
		w := &record.Owner{At: layout.PlaceOfKey(key[3:])}
		last = w.At.Key
		if err := w.Decode(value); err != nil || w.Object == 0 {
			return true, err
		}
		o, err := layout.MustObject(v, w.Object)
		if err == nil && o.Refs > 0 {
			out = append(out, o.ToWire())
		}
		return true, err
	})
	return out, last, more, err
}

// ObjectBuckets returns at most most buckets that have objects or unsettled keys.
func ObjectBuckets(v *kvtx.View, most int) (names []string, err error) {
	prefix := v.K.Table(record.TabObjectKey)
	for lo := prefix; len(names) < most; {
		name := ""
		err := v.R.Scan(lo, kvtx.PrefixEnd(prefix), func(key, _ []byte) bool {
			name = layout.PlaceOfKey(key[3:]).Bucket
			return false
		})
		if err != nil || name == "" {
			return names, err
		}
		names = append(names, name)
		lo = kvtx.PrefixEnd(v.K.ObjectKey(record.Place{Bucket: name, Key: ""}))
	}
	return names, nil
}
