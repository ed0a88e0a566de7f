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

// RunRecord returns a run's record; nil if the directory is no run.
func RunRecord(v *kvtx.View, id moraine.RunID) (*record.Run, error) {
	b, ok, err := v.R.Get(v.K.Run(id))
	if err != nil || !ok {
		return nil, err
	}
	r := &record.Run{Id: id}
	return r, r.Decode(b)
}
