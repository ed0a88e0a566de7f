package ckpt

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
)

// A step has the level of its least safe file. Its record counts its files below nvme and those that
// no object has. Every command that changes the level of a sealed file changes these counts in the
// same entry, so the level of the step and the links `latest-<level>` are never behind. The index
// goes to the bucket last, so a step whose files are all in objects can be read from the bucket alone.

// FollowLevels updates the steps whose files have another level after the command.
func FollowLevels(t *kvtx.Tx, moved []names.LevelChange) error {
	for len(moved) > 0 {
		dir, n := moved[0].Dir, 1
		for n < len(moved) && moved[n].Dir == dir {
			n++
		}
		if err := followLevel(t, dir, moved[:n]); err != nil {
			return err
		}
		moved = moved[n:]
	}
	return nil
}

// followLevel updates the step in one directory.
func followLevel(t *kvtx.Tx, id moraine.InodeID, moved []names.LevelChange) error {
	dir, err := tree.ReadInode(&t.View, id)
	if kvtx.MoraineKind(err) == moraine.NotFound || err == nil && dir.Step == (record.StepID{}) {
		return nil // the step was removed or aborted
	}
	if err != nil {
		return err
	}
	s, err := tree.MustStep(&t.View, dir.Step)
	if err != nil {
		return err
	}
	for _, m := range moved {
		s.MoveFile(m.Was, m.Now)
	}
	if s.State != record.StepCommitted || s.FilesLevel() == s.Level {
		putStep(t, s)
		return nil
	}
	return setLevel(t, s)
}

// setLevel gives a committed step the level of its files, and moves the links of its run.
func setLevel(t *kvtx.Tx, s *record.Step) error {
	t.IgnoresQuota = true // a full quota must not prevent links from moving
	was := s.Level
	s.SetLevel(s.FilesLevel(), t.Now)
	r, err := tree.RunRecord(&t.View, s.Id.Run)
	if err != nil {
		return err
	}
	if r != nil { // otherwise the run is being removed
		r.AddStep(was, -1)
		r.AddStep(s.Level, 1)
		t.Put(t.K.Run(r.Id), r.Encode())
	}
	return judged(t, s)
}
