package ckpt

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// A checkpoint removed by unlinking its index leaves its directory to the client that is emptying
// it (removeFromStep). If that client stops midway, files of a former checkpoint stay. A job
// removes the sealed files once nobody has changed the directory for sweepGrace, and the directory
// if nothing else is in it. It leaves files that somebody added since, and a directory that was
// moved away.

// sweepGrace is how long a directory being emptied must have stayed unchanged, in milliseconds.
const sweepGrace = 60_000

// sweepStep queues a job that removes what is left in a removed step's directory, and the rows of
// its parts.
func sweepStep(t *kvtx.Tx, id record.StepID, dir moraine.InodeID) error {
	_, err := jobs.AddJob(t, jobs.JobSpec{Kind: wire.JobKind_JOB_KIND_REMOVE_TREE, Subject: id.String(), Step: id, Target: uint64(dir),
		After: t.ClusterTime() + sweepGrace})
	return err
}

// runSweep does about limit records of a job of sweepStep. When the directory is done the job has
// no target any more.
func runSweep(t *kvtx.Tx, j *record.Job, limit int) (n int, err error) {
	before := len(t.Order)
	dir, err := tree.Inode(t, moraine.InodeID(j.Target))
	if kvtx.MoraineKind(err) == moraine.NotFound || err == nil && (dir.Nlink == 0 || dir.Sealed || dir.Typ != record.TypeDirectory) {
		j.Target, j.Cursor = 0, nil // the client has finished emptying it
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if sweepWaits(t, j, dir) {
		return 0, nil
	}
	if e, ok, err := tree.Lookup(&t.View, moraine.InodeID(j.Step.Run), j.Step.AttemptDir()); err != nil || !ok || e.Inode != dir.Parent || dir.Name != j.Step.Name() {
		j.Target, j.Cursor = 0, nil // somebody moved it away to keep it
		return 0, err
	}
	found, entries, err := tree.ListDir(&t.View, dir.Id, string(j.Cursor), max(min(limit, names.RemoveBudget)/8, 1))
	if err != nil {
		return 0, err
	}
	for i, name := range found {
		child, err := tree.Inode(t, entries[i].Inode)
		if err != nil {
			return 0, kvtx.Damaged(err)
		}
		j.Cursor = []byte(name)
		if child.Typ != record.TypeFile || !child.Sealed {
			continue
		}
		names.Unlink(t, dir, name, child)
		if err := names.DropName(t, child, name); err != nil {
			return 0, err
		}
		if len(t.Order)-before >= limit {
			return len(t.Order) - before, nil
		}
	}
	if len(found) > 0 {
		return len(t.Order) - before, nil
	}
	j.Target, j.Cursor = 0, nil
	if dir.Entries > 0 {
		return 0, nil
	}
	above, err := tree.Inode(t, dir.Parent)
	if err != nil {
		return 0, kvtx.Damaged(err)
	}
	name := dir.Name
	names.Unlink(t, above, name, dir)
	return len(t.Order) - before, names.DropName(t, dir, name)
}

// sweepWaits delays a sweep while the directory changed within sweepGrace.
func sweepWaits(t *kvtx.Tx, j *record.Job, dir *record.Inode) bool {
	if len(j.Cursor) > 0 || t.Now-dir.Mtime >= sweepGrace*1_000_000 {
		return false
	}
	jobs.UnindexJob(t, j)
	j.After = t.ClusterTime() + sweepGrace
	t.Put(t.K.JobReady(uint8(j.Kind), j.After, j.Id), []byte{record.JobVersion})
	return true
}
