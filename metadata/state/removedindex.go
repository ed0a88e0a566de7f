package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// markRemovedIndex notes that the index of a checkpoint goes, if a bucket has it, or may get it from
// an upload that is under way.
func (t *tx) markRemovedIndex(s *record.Step) error {
	if s.Index == 0 {
		return nil
	}
	i, err := t.inode(s.Index)
	if moraineKind(err) == moraine.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if i.Object != 0 {
		o, err := t.mustObject(i.Object)
		if err != nil {
			return err
		}
		t.putRemovedIndex(o.At)
		return nil
	}
	j, err := t.moveOf(i.Id, wire.JobKind_JOB_KIND_FLUSH)
	if err != nil || j == nil {
		return err
	}
	in, err := t.objectIntent(j.Id)
	if err == nil && in != nil {
		t.putRemovedIndex(in.At)
	}
	return err
}

// markRemovedIndexIn is markRemovedIndex of the checkpoint whose directory goes, where it is one's.
func (t *tx) markRemovedIndexIn(dir *record.Inode) error {
	if dir.Step == (record.StepID{}) {
		return nil
	}
	s, err := t.stepRecord(dir.Step)
	if err != nil || s == nil || s.State != record.StepCommitted {
		return err
	}
	return t.markRemovedIndex(s)
}

func (t *tx) putRemovedIndex(at record.Place) {
	t.put(t.k.removedIndex(at.Beside()), record.EncodeRemovedIndex(at.Key))
}

// removedIndexBeside returns the key of the removed index that is in the directory of another
// key; false where there is none.
func (v *view) removedIndexBeside(at record.Place) (index record.Place, ok bool, err error) {
	value, ok, err := v.r.Get(v.k.removedIndex(at.Beside()))
	if err != nil || !ok {
		return record.Place{}, false, err
	}
	key, err := record.DecodeRemovedIndex(value)
	return record.Place{Bucket: at.Bucket, Key: key}, true, err
}

// waitForIndex puts the deletion of an object off while the bucket has, or may get, the index
// of the removed checkpoint that it was of, and reports whether it did.
func (m *Machine) waitForIndex(t *tx, j *record.Job, o *record.Object) (bool, error) {
	at, ok, err := t.removedIndexBeside(o.At)
	if err != nil || !ok || at == o.At {
		return false, err
	}
	w, err := t.owner(at)
	if err != nil {
		return false, err
	}
	wait := w.Job != 0 || w.Until > t.clusterTime()
	if !wait && w.Object != 0 {
		if wait, err = t.goes(w.Object); err != nil {
			return false, err
		}
	}
	if wait {
		m.putOff(t, j, max(w.Until, t.clusterTime()+busyKeyDelay))
	}
	return wait, nil
}

// goes reports whether an object is to be deleted, or the file that it is of is being
// removed. One that clones of such a file read stays.
func (t *tx) goes(id moraine.ObjectID) (bool, error) {
	o, err := t.mustObject(id)
	if err != nil || o.Refs == 0 {
		return err == nil, err
	}
	i, err := t.inode(o.Inode)
	if moraineKind(err) == moraine.NotFound {
		return false, nil
	}
	if err != nil || i.Nlink == 0 {
		return err == nil, err
	}
	dir, err := t.inode(i.Parent)
	if moraineKind(err) == moraine.NotFound {
		return false, nil
	}
	return err == nil && dir.Nlink == 0, err
}
