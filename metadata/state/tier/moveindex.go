package tier

import (
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// partsAtOnce is the number of a checkpoint's files that one lease attempt of its index's flush
// inspects.
const partsAtOnce = 500

// waitForParts delays the flush of a committed checkpoint's index until every other file of the
// checkpoint is in an object. A bucket with the index therefore has the whole checkpoint. It
// returns true if the job must not be leased now. The job's cursor keeps the progress: files of a
// checkpoint do not change, so what an object has stays there.
func waitForParts(t *kvtx.Tx, j *record.Job, i *record.Inode) (wait bool, err error) {
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
				return true, waitForPart(t, j, file, name)
			}
		}
		j.Cursor = []byte(name)
	}
	if len(names) < partsAtOnce {
		return false, nil
	}
	putOff(t, j, t.ClusterTime()) // the next lease attempt continues after the cursor
	return true, nil
}

// waitForPart delays the flush of an index while a file of its checkpoint is being flushed or
// queued for it. Otherwise it fails the flush, because nothing would ever end the wait.
func waitForPart(t *kvtx.Tx, j *record.Job, file *record.Inode, name string) error {
	part, err := moveOf(&t.View, file.Id, wire.JobKind_JOB_KIND_FLUSH)
	if err != nil {
		return err
	}
	coming := part != nil
	if !coming && j.Parent != 0 {
		tree, err := jobs.Job(&t.View, j.Parent)
		if err != nil {
			return err
		}
		coming = tree != nil && tree.State == wire.JobState_JOB_STATE_PENDING // the tree's job is still listing
	}
	if coming {
		putOff(t, j, t.ClusterTime()+busyKeyDelay)
		return nil
	}
	return jobs.EndJob(t, j, wire.JobState_JOB_STATE_FAILED, record.Clip("no object holds "+name+" of the checkpoint, whose index goes last: flush the whole checkpoint", 255))
}
