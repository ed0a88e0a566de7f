package tier

import (
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// partsAtOnce is how many files of a checkpoint one look of its index's flush goes over.
const partsAtOnce = 500

// WaitForParts has the flush of a committed checkpoint's index wait until an object holds
// every other file of the checkpoint: so a bucket that has the index has the checkpoint. It
// reports whether the job is not to be leased now. How far it came is the job's cursor: a
// file of a checkpoint does not change, so what an object held once it holds.
func WaitForParts(t *kvtx.Tx, j *record.Job, i *record.Inode) (wait bool, err error) {
	if !i.Sealed || i.Parent == 0 {
		return false, nil
	}
	dir, err := tree.ReadInode(&t.View, i.Parent)
	if err != nil || dir.Step == (record.StepID{}) {
		return false, err
	}
	s, err := tree.MustStep(&t.View, dir.Step)
	if err != nil || s.Index != i.Id {
		return false, err
	}
	names, entries, err := tree.ListDir(&t.View, dir.Id, string(j.Cursor), partsAtOnce)
	if err != nil {
		return false, err
	}
	for n, name := range names {
		if entries[n].Inode != i.Id {
			file, err := tree.ReadInode(&t.View, entries[n].Inode)
			if err != nil {
				return false, kvtx.Damaged(err)
			}
			if !file.Clean() {
				return true, WaitForPart(t, j, file, name)
			}
		}
		j.Cursor = []byte(name)
	}
	if len(names) < partsAtOnce {
		return false, nil
	}
	PutOff(t, j, t.ClusterTime()) // the next lease goes on behind the cursor
	return true, nil
}

// WaitForPart puts the flush of an index off while a file of its checkpoint is being
// flushed, or is to be; else it fails it, for nothing would ever end the wait.
func WaitForPart(t *kvtx.Tx, j *record.Job, file *record.Inode, name string) error {
	part, err := MoveOf(&t.View, file.Id, wire.JobKind_JOB_KIND_FLUSH)
	if err != nil {
		return err
	}
	coming := part != nil
	if !coming && j.Parent != 0 {
		tree, err := jobs.Job(&t.View, j.Parent)
		if err != nil {
			return err
		}
		coming = tree != nil && tree.State == wire.JobState_JOB_STATE_PENDING // it is still listing
	}
	if coming {
		PutOff(t, j, t.ClusterTime()+busyKeyDelay)
		return nil
	}
	return jobs.EndJob(t, j, wire.JobState_JOB_STATE_FAILED, record.Clip("no object holds "+name+" of the checkpoint, whose index goes last: flush the whole checkpoint", 255))
}
