package tier

import (
	"math"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// QueueTree queues a job that queues a move of every file below a directory.
func QueueTree(t *kvtx.Tx, kind wire.JobKind, dir *record.Inode) (moraine.JobID, error) {
	path, ok, err := tree.PathOf(&t.View, dir)
	if err != nil {
		return 0, err
	}
	if !ok || path == "" {
		path = "/"
	}
	id, err := jobs.AddJob(t, jobs.JobSpec{Kind: wire.JobKind_JOB_KIND_MOVE_TREE, Subject: record.Clip(path, moraine.MaxNameLen), Target: uint64(dir.Id), Moves: kind})
	if err != nil {
		return 0, err
	}
	t.Put(t.K.TreeDir(id, dir.Id), record.EncodeText(record.JobVersion, ""))
	return id, nil
}

// RunMoveTree lists directories, about limit records of them, one after the other, and queues moves
// of their files. After the last directory it waits for these moves. It returns true if the job
// ended or waits; the job is then already written.
func RunMoveTree(t *kvtx.Tx, j *record.Job, limit int) (over bool, err error) {
	before := len(t.Order)
	for len(t.Order)-before < limit {
		keys, err := t.KeysUnder(t.K.TreeDirs(j.Id), 1)
		if err != nil {
			return false, err
		}
		if len(keys) == 0 {
			return true, treeListed(t, j)
		}
		if j.Ending != 0 {
			t.Del(keys[0])
			continue
		}
		if err := listTreeDir(t, j, keys[0], before+limit); err != nil {
			return false, err
		}
	}
	return false, nil
}

// listTreeDir queues the entries of one directory, after the last name seen.
func listTreeDir(t *kvtx.Tx, j *record.Job, key []byte, stop int) error {
	after, err := treeCursor(&t.View, key)
	if err != nil {
		return err
	}
	dir := moraine.InodeID(record.LastU64(key))
	most := max((stop-len(t.Order))/8, 1)
	if j.Scope != 0 {
		d, err := tree.ReadInode(&t.View, dir)
		if err != nil && kvtx.MoraineKind(err) != moraine.NotFound {
			return err
		}
		if err == nil {
			in, err := tree.InJobScope(&t.View, j, d)
			if err != nil {
				return err
			}
			if !in {
				t.Del(key)
				return nil
			}
		}
	}
	names, entries, err := tree.ListDir(&t.View, dir, after, most)
	if err != nil {
		return err
	}
	for n, name := range names {
		if entries[n].Typ == record.TypeDirectory {
			if moraine.IsReserved(name) {
				continue
			}
			t.Put(t.K.TreeDir(j.Id, entries[n].Inode), record.EncodeText(record.JobVersion, ""))
			continue
		}
		if entries[n].Typ != record.TypeFile {
			continue
		}
		i, err := tree.Inode(t, entries[n].Inode)
		if err != nil {
			return kvtx.Damaged(err)
		}
		need, why, err := needs(&t.View, j.Moves, i)
		if err != nil {
			return err
		}
		if !need {
			if why != "" {
				j.Failed(name + ": " + why)
			}
			continue
		}
		if err := queueChild(t, j, i); err != nil {
			return err
		}
	}
	if len(names) < most {
		t.Del(key)
		return nil
	}
	t.Put(key, record.EncodeText(record.JobVersion, names[len(names)-1]))
	return nil
}

// treeCursor returns the last name that a tree's job saw in a directory.
func treeCursor(v *kvtx.View, key []byte) (string, error) {
	b, ok, err := v.R.Get(key)
	if err != nil || !ok {
		return "", err
	}
	return record.DecodeTreeDir(b)
}

// queueChild queues a move of a file for a tree's job. The tree's job counts it unless another
// tree's job does.
func queueChild(t *kvtx.Tx, j *record.Job, i *record.Inode) error {
	counted, err := counted(t, j, i)
	if err != nil {
		return err
	}
	id, err := QueueFile(t, j.Moves, i, j.Id)
	if err != nil {
		return err
	}
	child, err := jobs.Job(&t.View, id)
	if err == nil && child.Parent == j.Id && !counted {
		j.Total++
	}
	return err
}

// counted reports whether a tree's job found the file before, under another name or before a
// rename, and waits for its move.
func counted(t *kvtx.Tx, j *record.Job, i *record.Inode) (bool, error) {
	child, err := moveOf(&t.View, i.Id, j.Moves)
	return err == nil && child != nil && child.Parent == j.Id, err
}

// treeListed ends a tree's job after its last directory, or makes it wait for the jobs that it
// queued.
func treeListed(t *kvtx.Tx, j *record.Job) error {
	if j.Done >= j.Total || j.Ending != 0 {
		return endTree(t, j)
	}
	jobs.UnindexJob(t, j)
	j.State, j.Until = wire.JobState_JOB_STATE_RUNNING, math.MaxUint64 // nobody leases it, and this lease never ends
	t.Put(t.K.JobLease(j.Until, j.Id), []byte{record.JobVersion})
	jobs.PutJob(t, j)
	return nil
}

// CancelTree stops a tree's job. The jobs that it queued continue.
func CancelTree(t *kvtx.Tx, j *record.Job, reason string) error {
	j.Ending, j.Err = wire.JobState_JOB_STATE_CANCELED, reason
	if j.State == wire.JobState_JOB_STATE_RUNNING {
		return endTree(t, j)
	}
	jobs.PutJob(t, j) // it ends after deleting the rows of directories not yet listed
	return nil
}

// endTree ends a tree's job and reports its failed moves.
func endTree(t *kvtx.Tx, j *record.Job) error {
	switch {
	case j.Ending != 0:
		return jobs.EndJob(t, j, j.Ending, j.Err)
	case j.Err != "":
		return jobs.EndJob(t, j, wire.JobState_JOB_STATE_FAILED, j.Err)
	}
	return jobs.EndJob(t, j, wire.JobState_JOB_STATE_DONE, "")
}

// ChildEnded counts an ended job for which a tree's job waits.
func ChildEnded(t *kvtx.Tx, parent moraine.JobID, why string) error {
	if parent == 0 {
		return nil
	}
	j, err := jobs.Job(&t.View, parent)
	if err != nil || j == nil || !j.Live() {
		return err
	}
	j.Done++
	if why != "" {
		j.Failed(why)
	}
	if j.State == wire.JobState_JOB_STATE_RUNNING && j.Done >= j.Total {
		return endTree(t, j)
	}
	jobs.PutJob(t, j)
	return nil
}
