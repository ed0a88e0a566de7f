package state

import (
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// partsAtOnce is how many files of a checkpoint one look of its index's flush goes over.
const partsAtOnce = 500

// waitForParts has the flush of a committed checkpoint's index wait until an object holds
// every other file of the checkpoint: so a bucket that has the index has the checkpoint. It
// reports whether the job is not to be leased now. How far it came is the job's cursor: a
// file of a checkpoint does not change, so what an object held once it holds.
func (m *Machine) waitForParts(t *tx, j *record.Job, i *record.Inode) (wait bool, err error) {
	if !i.Sealed || i.Parent == 0 {
		return false, nil
	}
	dir, err := t.view.inode(i.Parent)
	if err != nil || dir.Step == (record.StepID{}) {
		return false, err
	}
	s, err := t.mustStep(dir.Step)
	if err != nil || s.Index != i.Id {
		return false, err
	}
	names, entries, err := t.listDir(dir.Id, string(j.Cursor), partsAtOnce)
	if err != nil {
		return false, err
	}
	for n, name := range names {
		if entries[n].Inode != i.Id {
			file, err := t.view.inode(entries[n].Inode)
			if err != nil {
				return false, damaged(err)
			}
			if !file.Clean() {
				return true, m.waitForPart(t, j, file, name)
			}
		}
		j.Cursor = []byte(name)
	}
	if len(names) < partsAtOnce {
		return false, nil
	}
	m.putOff(t, j, t.clusterTime()) // the next lease goes on behind the cursor
	return true, nil
}

// waitForPart puts the flush of an index off while a file of its checkpoint is being
// flushed, or is to be; else it fails it, for nothing would ever end the wait.
func (m *Machine) waitForPart(t *tx, j *record.Job, file *record.Inode, name string) error {
	part, err := t.moveOf(file.Id, wire.JobKind_JOB_KIND_FLUSH)
	if err != nil {
		return err
	}
	coming := part != nil
	if !coming && j.Parent != 0 {
		tree, err := t.job(j.Parent)
		if err != nil {
			return err
		}
		coming = tree != nil && tree.State == wire.JobState_JOB_STATE_PENDING // it is still listing
	}
	if coming {
		m.putOff(t, j, t.clusterTime()+busyKeyDelay)
		return nil
	}
	return m.endJob(t, j, wire.JobState_JOB_STATE_FAILED, record.Clip("no object holds "+name+" of the checkpoint, whose index goes last: flush the whole checkpoint", 255))
}
