package tier

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// MarkRemovedIndex records that a checkpoint's index is being removed, if a bucket has it, or may
// get it from an upload in progress.
func MarkRemovedIndex(t *kvtx.Tx, s *record.Step) error {
	if s.Index == 0 {
		return nil
	}
	i, err := tree.Inode(t, s.Index)
	if kvtx.MoraineKind(err) == moraine.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if i.Object != 0 {
		o, err := layout.MustObject(&t.View, i.Object)
		if err != nil {
			return err
		}
		putRemovedIndex(t, o.At)
		return nil
	}
	j, err := moveOf(&t.View, i.Id, wire.JobKind_JOB_KIND_FLUSH)
	if err != nil || j == nil {
		return err
	}
	in, err := ObjectIntent(&t.View, j.Id)
	if err == nil && in != nil {
		putRemovedIndex(t, in.At)
	}
	return err
}

// MarkRemovedIndexIn is MarkRemovedIndex for the checkpoint in a removed directory, if there is
// one.
func MarkRemovedIndexIn(t *kvtx.Tx, dir *record.Inode) error {
	if dir.Step == (record.StepID{}) {
		return nil
	}
	s, err := tree.StepRecord(&t.View, dir.Step)
	if err != nil || s == nil || s.State != record.StepCommitted {
		return err
	}
	return MarkRemovedIndex(t, s)
}

// putRemovedIndex records the key of a removed index in the row of its directory.
func putRemovedIndex(t *kvtx.Tx, at record.Place) {
	t.Put(t.K.RemovedIndex(at.Beside()), record.EncodeRemovedIndex(at.Key))
}

// waitForIndex delays the deletion of an object while the bucket has, or may get, the index of the
// object's removed checkpoint. It returns true if it did.
func waitForIndex(t *kvtx.Tx, j *record.Job, o *record.Object) (bool, error) {
	at, ok, err := layout.RemovedIndexBeside(&t.View, o.At)
	if err != nil || !ok || at == o.At {
		return false, err
	}
	w, err := layout.Owner(&t.View, at)
	if err != nil {
		return false, err
	}
	wait := w.Job != 0 || w.Until > t.ClusterTime()
	if !wait && w.Object != 0 {
		if wait, err = goes(t, w.Object); err != nil {
			return false, err
		}
	}
	if wait {
		putOff(t, j, max(w.Until, t.ClusterTime()+busyKeyDelay))
	}
	return wait, nil
}

// goes reports whether an object will be deleted, or its file is being removed. An object that
// clones of such a file read stays.
func goes(t *kvtx.Tx, id moraine.ObjectID) (bool, error) {
	o, err := layout.MustObject(&t.View, id)
	if err != nil || o.Refs == 0 {
		return err == nil, err
	}
	i, err := tree.Inode(t, o.Inode)
	if kvtx.MoraineKind(err) == moraine.NotFound {
		return false, nil
	}
	if err != nil || i.Nlink == 0 {
		return err == nil, err
	}
	dir, err := tree.Inode(t, i.Parent)
	if kvtx.MoraineKind(err) == moraine.NotFound {
		return false, nil
	}
	return err == nil && dir.Nlink == 0, err
}
