package tree

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
)

// StepRecord returns a checkpoint's record; nil if there is none.
func StepRecord(v *kvtx.View, id record.StepID) (*record.Step, error) {
	b, ok, err := v.R.Get(v.K.Step(id))
	if err != nil || !ok {
		return nil, err
	}
	s := &record.Step{Id: id}
	return s, s.Decode(b)
}

// MustStep returns a step that another record refers to.
func MustStep(v *kvtx.View, id record.StepID) (*record.Step, error) {
	s, err := StepRecord(v, id)
	if err == nil && s == nil {
		err = kvtx.Corrupt("step", id.String(), "a record refers to the step, which has no record")
	}
	return s, err
}

// StepOfDir returns the step whose directory an inode is; nil if it is not, or not any more.
func StepOfDir(v *kvtx.View, id moraine.InodeID) (*record.Step, error) {
	dir, err := ReadInode(v, id)
	if kvtx.MoraineKind(err) == moraine.NotFound || err == nil && dir.Step == (record.StepID{}) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return StepRecord(v, dir.Step)
}

// RaiseStepOf lets the step of a file go on to the devices, if the file is a part of one that stays in
// memory: another file is about to share its bytes, and may be waited for.
func RaiseStepOf(t *kvtx.Tx, file *record.Inode) error {
	if !file.Sealed || file.Level != moraine.Memory || file.Parent == 0 {
		return nil
	}
	s, err := StepOfDir(&t.View, file.Parent)
	if err != nil || s == nil || !s.StaysInMemory {
		return err
	}
	s.StaysInMemory = false
	t.Put(t.K.Step(s.Id), s.Encode())
	return nil
}

// RunRecord returns a run's record; nil if the directory is no run.
func RunRecord(v *kvtx.View, id moraine.RunID) (*record.Run, error) {
	b, ok, err := v.R.Get(v.K.Run(id))
	if err != nil || !ok {
		return nil, err
	}
	r := &record.Run{Id: id}
	return r, r.Decode(b)
}
