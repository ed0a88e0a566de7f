package state

import (
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// A bucket that has the index of a checkpoint has all of it, also while the checkpoint is
// being removed: the objects of its other files are deleted once the store has confirmed that
// the index's is gone. A row says of the directory of a bucket, as keys have it, which key in
// it is the index of a removed checkpoint; the row goes when that key is nobody's any more.

const removedIndexVersion = 1

// beside is the directory that a key is in.
func (p place) beside() place {
	return place{p.bucket, p.key[:strings.LastIndexByte(p.key, '/')+1]}
}

// markRemovedIndex notes that the index of a checkpoint goes, if a bucket has it, or may get it from
// an upload that is under way.
func (t *tx) markRemovedIndex(s *step) error {
	if s.index == 0 {
		return nil
	}
	i, err := t.inode(s.index)
	if moraineKind(err) == moraine.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if i.object != 0 {
		o, err := t.mustObject(i.object)
		if err != nil {
			return err
		}
		t.putRemovedIndex(o.at)
		return nil
	}
	j, err := t.moveOf(i.id, wire.JobKind_JOB_KIND_FLUSH)
	if err != nil || j == nil {
		return err
	}
	in, err := t.objectIntent(j.id)
	if err == nil && in != nil {
		t.putRemovedIndex(in.at)
	}
	return err
}

// markRemovedIndexIn is markRemovedIndex of the checkpoint whose directory goes, where it is one's.
func (t *tx) markRemovedIndexIn(dir *inode) error {
	if dir.step == (stepID{}) {
		return nil
	}
	s, err := t.stepRecord(dir.step)
	if err != nil || s == nil || s.state != stepCommitted {
		return err
	}
	return t.markRemovedIndex(s)
}

func (t *tx) putRemovedIndex(at place) {
	t.put(t.k.removedIndex(at.beside()), encodeRemovedIndex(at.key))
}

// encodeRemovedIndex returns the row of a directory: the key of the index in it.
func encodeRemovedIndex(key string) []byte {
	return putString(newValue(removedIndexVersion, 2+len(key)), key)
}

func decodeRemovedIndex(b []byte) (key string, err error) {
	d := dec{b: b}
	d.version(removedIndexVersion)
	key = d.string()
	return key, d.end("removed index")
}

// removedIndexBeside returns the key of the removed index that is in the directory of another
// key; false where there is none.
func (v *view) removedIndexBeside(at place) (index place, ok bool, err error) {
	value, ok, err := v.r.Get(v.k.removedIndex(at.beside()))
	if err != nil || !ok {
		return place{}, false, err
	}
	key, err := decodeRemovedIndex(value)
	return place{at.bucket, key}, true, err
}

// waitForIndex puts the deletion of an object off while the bucket has, or may get, the index
// of the removed checkpoint that it was of, and reports whether it did.
func (m *Machine) waitForIndex(t *tx, j *job, o *object) (bool, error) {
	at, ok, err := t.removedIndexBeside(o.at)
	if err != nil || !ok || at == o.at {
		return false, err
	}
	w, err := t.owner(at)
	if err != nil {
		return false, err
	}
	wait := w.job != 0 || w.until > t.clusterTime()
	if !wait && w.object != 0 {
		if wait, err = t.goes(w.object); err != nil {
			return false, err
		}
	}
	if wait {
		m.putOff(t, j, max(w.until, t.clusterTime()+busyKeyDelay))
	}
	return wait, nil
}

// goes reports whether an object is to be deleted, or the file that it is of is being
// removed. One that clones of such a file read stays.
func (t *tx) goes(id moraine.ObjectID) (bool, error) {
	o, err := t.mustObject(id)
	if err != nil || o.refs == 0 {
		return err == nil, err
	}
	i, err := t.inode(o.inode)
	if moraineKind(err) == moraine.NotFound {
		return false, nil
	}
	if err != nil || i.nlink == 0 {
		return err == nil, err
	}
	dir, err := t.inode(i.parent)
	if moraineKind(err) == moraine.NotFound {
		return false, nil
	}
	return err == nil && dir.nlink == 0, err
}
