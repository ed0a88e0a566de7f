package state

import (
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// badObject returns the row of an object; nil where it has none.
func (v *view) badObject(id moraine.ObjectID) (*record.BadObject, error) {
	value, ok, err := v.r.Get(v.k.badObject(id))
	if err != nil || !ok {
		return nil, err
	}
	return record.DecodeBadObject(value)
}

// isBad reports whether an object is not in its bucket as it was recorded.
func (v *view) isBad(id moraine.ObjectID) (bool, error) {
	if id == 0 {
		return false, nil
	}
	b, err := v.badObject(id)
	return b != nil, err
}

// forgetBad takes an object's row away, if it has one.
func (t *tx) forgetBad(o *record.Object) error {
	b, err := t.badObject(o.Id)
	if err != nil || b == nil {
		return err
	}
	t.del(t.k.badObject(o.Id))
	t.count[record.CBadObjects]--
	t.lossChanged()
	return nil
}

// judgeObject returns what a report makes of an object's row: changed is false where it
// changes nothing, and b is nil where the object is good again. A report about another object
// at the key, or another key, than the record's says nothing.
func (v *view) judgeObject(w *wire.ObjectCheck) (o *record.Object, b *record.BadObject, changed bool, err error) {
	o, err = v.object(moraine.ObjectID(w.GetObject().GetId()))
	if err != nil || o == nil || o.Refs == 0 {
		return nil, nil, false, err
	}
	said := w.GetObject()
	if o.At != (record.Place{Bucket: said.GetBucket(), Key: said.GetKey()}) || o.Version != said.GetVersion() || o.Etag != said.GetEtag() {
		return nil, nil, false, nil
	}
	old, err := v.badObject(o.Id)
	if err != nil {
		return nil, nil, false, err
	}
	b = &record.BadObject{State: w.GetState(), Text: record.Clip(w.GetError(), record.MaxBadText)}
	switch w.GetState() {
	case wire.ObjectState_OBJECT_STATE_GOOD:
		// A HEAD says nothing of bytes that were found wrong: that piece must have been read.
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

// reportObjects takes over what hosts found in their bucket.
func (m *Machine) reportObjects(t *tx, op *wire.ReportObjects) (*wire.MetaResponse, error) {
	if len(op.GetChecks()) > record.MaxReportedObjects {
		return nil, fail(moraine.TooLarge, "report objects", "", "%d objects, %d at most", len(op.GetChecks()), record.MaxReportedObjects)
	}
	for _, w := range op.GetChecks() {
		o, b, changed, err := t.judgeObject(w)
		if err != nil {
			return nil, err
		}
		if !changed {
			continue
		}
		if b == nil {
			if err := t.forgetBad(o); err != nil {
				return nil, err
			}
			continue
		}
		known, err := t.isBad(o.Id)
		if err != nil {
			return nil, err
		}
		if !known {
			t.count[record.CBadObjects]++
			t.lossChanged()
		}
		b.Since = t.clusterTime()
		t.put(t.k.badObject(o.Id), b.Encode())
	}
	return done(), nil
}

// ObjectsChange returns those of a report's objects whose record it changes.
func (m *Machine) ObjectsChange(r Reader, checks []*wire.ObjectCheck) (out []*wire.ObjectCheck, err error) {
	v := m.view(r)
	for _, w := range checks {
		_, _, changed, err := v.judgeObject(w)
		if err != nil {
			return nil, err
		}
		if changed {
			out = append(out, w)
		}
	}
	return out, nil
}

// eachBad calls fn with the bad objects behind one, in order of their numbers, until it
// returns false.
func (v *view) eachBad(after moraine.ObjectID, fn func(o *record.Object, b *record.BadObject) (more bool, err error)) error {
	prefix := v.k.table(record.TabBadObject)
	var bad error
	err := v.r.Scan(append(v.k.badObject(after), 0), prefixEnd(prefix), func(key, value []byte) bool {
		var b *record.BadObject
		var o *record.Object
		if b, bad = record.DecodeBadObject(value); bad != nil {
			return false
		}
		if o, bad = v.mustObject(moraine.ObjectID(record.LastU64(key))); bad != nil {
			return false
		}
		var more bool
		more, bad = fn(o, b)
		return more && bad == nil
	})
	if err == nil {
		err = bad
	}
	return err
}

// harms reports whether a bad object matters: files have bytes in it alone, or it is to be the
// copy of a file's present content. One of earlier content waits for the next flush.
func (v *view) harms(o *record.Object) (bool, error) {
	if o.Tables() > 0 {
		return true, nil
	}
	i, err := v.inode(o.Inode)
	if moraineKind(err) == moraine.NotFound {
		return false, nil
	}
	return err == nil && i.Object == o.Id && i.Clean(), err
}

// lostCopy reports whether the object of a clean file is bad, and no file has bytes in it
// alone: then another flush uploads it again.
func (v *view) lostCopy(i *record.Inode) (bool, error) {
	if bad, err := v.isBad(i.Object); !bad || err != nil {
		return false, err
	}
	o, err := v.mustObject(i.Object)
	return err == nil && o.Tables() == 0, err
}

// CountBadObjects counts the bad objects that matter, of most that are looked at: those that
// files have bytes in alone are lost.
func (m *Machine) CountBadObjects(r Reader, most int) (lost, bad int, err error) {
	v := m.view(r)
	err = v.eachBad(0, func(o *record.Object, _ *record.BadObject) (bool, error) {
		harms, err := v.harms(o)
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

// BadObjectsOf returns up to limit bad objects of a bucket, behind one, as they are to be
// compared again; next is where to go on, 0 from the beginning. It looks at most that many.
func (m *Machine) BadObjectsOf(r Reader, bucket string, after moraine.ObjectID, limit, most int) (out []*wire.ObjectToCheck, next moraine.ObjectID, err error) {
	err = m.view(r).eachBad(after, func(o *record.Object, b *record.BadObject) (bool, error) {
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

// ObjectsOf returns up to limit objects of a bucket that something refers to, behind a key,
// and the last key that it looked at: it looks at most keys. more is false at the end.
func (m *Machine) ObjectsOf(r Reader, bucket, after string, limit, most int) (out []*wire.Object, last string, more bool, err error) {
	v := m.view(r)
	var bad error
	last = after
	lo := v.k.objectKey(record.Place{Bucket: bucket, Key: after})
	if after != "" {
		lo = append(lo, 0)
	}
	err = v.r.Scan(lo, prefixEnd(v.k.objectKey(record.Place{Bucket: bucket, Key: ""})), func(key, value []byte) bool {
		if more = len(out) == limit || most == 0; more {
			return false
		}
		most--
		w := &record.Owner{At: placeOfKey(key[3:])}
		last = w.At.Key
		if bad = w.Decode(value); bad != nil || w.Object == 0 {
			return bad == nil
		}
		var o *record.Object
		if o, bad = v.mustObject(w.Object); bad == nil && o.Refs > 0 {
			out = append(out, o.ToWire())
		}
		return bad == nil
	})
	if err == nil {
		err = bad
	}
	return out, last, more, err
}

// ObjectBuckets returns the buckets that have objects, or keys that are not settled, at most
// that many.
func (m *Machine) ObjectBuckets(r Reader, most int) (names []string, err error) {
	v := m.view(r)
	prefix := v.k.table(record.TabObjectKey)
	for lo := prefix; len(names) < most; {
		name := ""
		err := v.r.Scan(lo, prefixEnd(prefix), func(key, _ []byte) bool {
			name = placeOfKey(key[3:]).Bucket
			return false
		})
		if err != nil || name == "" {
			return names, err
		}
		names = append(names, name)
		lo = prefixEnd(v.k.objectKey(record.Place{Bucket: name, Key: ""}))
	}
	return names, nil
}

// readBadObjects lists bad objects, with the files that they were made from. A caller that is
// confined sees those of files below its root.
func (v *view) readBadObjects(sc scope, op *wire.ListBadObjects) (*wire.MetaResponse, error) {
	reply := &wire.BadObjectsReply{}
	limit := listLimit(op.GetLimit())
	err := v.eachBad(moraine.ObjectID(op.GetAfter()), func(o *record.Object, b *record.BadObject) (bool, error) {
		w, err := v.describeBad(sc, o, b)
		if err != nil || w == nil {
			return err == nil, err
		}
		if reply.More = len(reply.Objects) == limit; reply.More {
			return false, nil
		}
		reply.Objects = append(reply.Objects, w)
		return true, nil
	})
	return &wire.MetaResponse{Result: &wire.MetaResponse_BadObjects{BadObjects: reply}}, err
}

// describeBad says of a bad object which bytes of which file it has; nil where that is not
// the caller's to see.
func (v *view) describeBad(sc scope, o *record.Object, b *record.BadObject) (*wire.BadObject, error) {
	all := sc.root == v.k.top()
	if harms, err := v.harms(o); !harms || err != nil {
		return nil, err
	}
	w := &wire.BadObject{Object: o.ToWire(), State: b.State, Offset: b.Offset, Error: strings.ToValidUTF8(b.Text, "?"), Evicted: o.Tables() > 0}
	i, err := v.inode(o.Inode)
	if moraineKind(err) == moraine.NotFound {
		if !all {
			return nil, nil
		}
		w.Others = w.Evicted
		return w, nil
	}
	if err != nil {
		return nil, err
	}
	path, below, err := v.pathBelow(sc.root, i.Id)
	if err != nil || !below && !all {
		return nil, err
	}
	f := &wire.LostFile{}
	if _, err := v.lostRangesOf(f, i, func(_ *record.Inode, e moraine.Extent) (bool, error) { return e.Object == o.Id, nil }); err != nil {
		return nil, err
	}
	w.Path, w.Ranges, w.More = path, f.Ranges, f.More
	if all && w.Evicted {
		w.Others = len(f.Ranges) == 0 || o.Tables() > 1
		if !w.Others {
			w.Others, err = v.sharesTables(i)
		}
	}
	return w, err
}

// sharesTables reports whether another file, such as a clone, has a table of this one's: of
// the first tables that it looks at.
func (v *view) sharesTables(i *record.Inode) (shared bool, err error) {
	left := record.MaxSharedLook
	err = v.refsFrom(i.Content, 0, func(r record.Ref) (bool, error) {
		h, err := v.tableHead(r.Table)
		left--
		shared = err == nil && h.Refs > 1
		return !shared && left > 0, err
	})
	return shared, err
}
