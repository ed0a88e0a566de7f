package ckpt

import (
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// Bounds of what is said of a step.
const (
	maxTags    = 16
	maxNoteLen = 500 // bytes
)

// MarkStep changes the mark, the tags and the pin of a committed step. A quarantined step is on no
// branch: the links of the run move. A pinned step goes on to the devices, as does one that the request
// lets rise.
func MarkStep(t *kvtx.Tx, op *wire.MarkStep) (*wire.MetaResponse, error) {
	id := stepFromWire(op.GetKey())
	if _, _, err := runInScope(&t.View, t.Scope, "mark step", id.Run); err != nil {
		return nil, err
	}
	s, err := tree.StepRecord(&t.View, id)
	switch {
	case err != nil:
		return nil, err
	case s == nil || s.State == record.StepDeleted:
		return nil, kvtx.Fail(moraine.NotFound, "mark step", id.String(), "")
	case op.GetRise() && (s.State == record.StepOpen || s.State == record.StepSealed):
		s.StaysInMemory = false
		putStep(t, s)
		return stepReply(s), nil
	case s.State != record.StepCommitted:
		return nil, kvtx.Fail(moraine.Incomplete, "mark step", id.String(), "the step is not committed")
	}
	t.IgnoresQuota = true // a full quota must not prevent links from moving
	if err := setMark(s, op); err != nil {
		return nil, err
	}
	if op.Pinned != nil {
		s.Pinned = op.GetPinned()
	}
	if op.GetRise() || s.Pinned {
		s.StaysInMemory = false
	}
	s.Tags = slices.DeleteFunc(s.Tags, func(tag string) bool { return slices.Contains(op.GetRemoveTags(), tag) })
	for _, tag := range op.GetAddTags() {
		if err := names.CheckName("mark step", tag); err != nil {
			return nil, err
		}
		if !slices.Contains(s.Tags, tag) {
			s.Tags = append(s.Tags, tag)
		}
	}
	if len(s.Tags) > maxTags {
		return nil, kvtx.Fail(moraine.TooLarge, "mark step", id.String(), "the step has %d tags, %d at most", len(s.Tags), maxTags)
	}
	slices.Sort(s.Tags)
	if err := judged(t, s); err != nil {
		return nil, err
	}
	return stepReply(s), nil
}

// setMark changes the mark of a step and its note.
func setMark(s *record.Step, op *wire.MarkStep) error {
	switch op.GetMark() {
	case wire.StepMark_STEP_MARK_UNSPECIFIED:
	case wire.StepMark_STEP_MARK_NONE:
		s.Mark, s.Note = wire.StepMark_STEP_MARK_UNSPECIFIED, ""
	case record.StepHealthy, record.StepQuarantined:
		s.Mark = op.GetMark()
	default:
		return kvtx.Fail(moraine.InvalidArgument, "mark step", s.Id.String(), "mark %d is unknown", op.GetMark())
	}
	if op.Note == nil {
		return nil
	}
	if len(op.GetNote()) > maxNoteLen {
		return kvtx.Fail(moraine.TooLarge, "mark step", s.Id.String(), "the note has %d bytes, %d at most", len(op.GetNote()), maxNoteLen)
	}
	s.Note = op.GetNote()
	return nil
}
