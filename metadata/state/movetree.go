package state

import (
	"math"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// queueTree makes a job that queues a move of every file below a directory.
func (m *Machine) queueTree(t *tx, kind wire.JobKind, dir *record.Inode) (moraine.JobID, error) {
	path, ok, err := t.pathOf(dir)
	if err != nil {
		return 0, err
	}
	if !ok || path == "" {
		path = "/"
	}
	id, err := m.addJob(t, jobSpec{kind: wire.JobKind_JOB_KIND_MOVE_TREE, subject: record.Clip(path, moraine.MaxNameLen), target: uint64(dir.Id), moves: kind})
	if err != nil {
		return 0, err
	}
	t.put(t.k.treeDir(id, dir.Id), record.PutString([]byte{record.JobVersion}, ""))
	return id, nil
}

// runMoveTree lists what is below about limit records' worth of directories,
// one directory after the other, and queues moves of files. When it has seen all
// it waits for the jobs that it made. It returns whether it has ended, or waits:
// then the job is written.
func (m *Machine) runMoveTree(t *tx, j *record.Job, limit int) (over bool, err error) {
	before := len(t.order)
	for len(t.order)-before < limit {
		keys, err := t.keysUnder(t.k.treeDirs(j.Id), 1)
		if err != nil {
			return false, err
		}
		if len(keys) == 0 {
			return true, m.treeListed(t, j)
		}
		if j.Ending != 0 {
			t.del(keys[0])
			continue
		}
		if err := m.listTreeDir(t, j, keys[0], before+limit); err != nil {
			return false, err
		}
	}
	return false, nil
}

// listTreeDir queues what is in one directory, from the last name seen on.
func (m *Machine) listTreeDir(t *tx, j *record.Job, key []byte, stop int) error {
	after, err := t.treeCursor(key)
	if err != nil {
		return err
	}
	dir := moraine.InodeID(record.LastU64(key))
	most := max((stop-len(t.order))/8, 1)
	if j.Scope != 0 {
		d, err := t.view.inode(dir)
		if err != nil && moraineKind(err) != moraine.NotFound {
			return err
		}
		if err == nil {
			in, err := t.inJobScope(j, d)
			if err != nil {
				return err
			}
			if !in {
				t.del(key)
				return nil
			}
		}
	}
	names, entries, err := t.listDir(dir, after, most)
	if err != nil {
		return err
	}
	for n, name := range names {
		if entries[n].Typ == record.TypeDirectory {
			if name == moraine.UploadsDir {
				continue
			}
			t.put(t.k.treeDir(j.Id, entries[n].Inode), record.PutString([]byte{record.JobVersion}, ""))
			continue
		}
		if entries[n].Typ != record.TypeFile {
			continue
		}
		i, err := t.inode(entries[n].Inode)
		if err != nil {
			return damaged(err)
		}
		need, why, err := t.needs(j.Moves, i)
		if err != nil {
			return err
		}
		if !need {
			if why != "" {
				j.Failed(name + ": " + why)
			}
			continue
		}
		if err := m.queueChild(t, j, i); err != nil {
			return err
		}
	}
	if len(names) < most {
		t.del(key)
		return nil
	}
	t.put(key, record.PutString([]byte{record.JobVersion}, names[len(names)-1]))
	return nil
}

func (v *view) treeCursor(key []byte) (string, error) {
	b, ok, err := v.r.Get(key)
	if err != nil || !ok {
		return "", err
	}
	return record.DecodeTreeDir(b)
}

// queueChild queues a move of a file on behalf of a tree's job, which counts it
// unless another tree's does.
func (m *Machine) queueChild(t *tx, j *record.Job, i *record.Inode) error {
	counted, err := m.counted(t, j, i)
	if err != nil {
		return err
	}
	id, err := m.queueFile(t, j.Moves, i, j.Id)
	if err != nil {
		return err
	}
	child, err := t.job(id)
	if err == nil && child.Parent == j.Id && !counted {
		j.Total++
	}
	return err
}

// counted reports whether a tree's job has met a file before, under another
// name, or before a rename, and waits for its move.
func (m *Machine) counted(t *tx, j *record.Job, i *record.Inode) (bool, error) {
	child, err := t.moveOf(i.Id, j.Moves)
	if err != nil || child == nil || child.Parent != j.Id {
		return false, err
	}
	return t.speaks(levelNewest)
}

// treeListed ends a tree's job whose directories have all been seen, or has it
// wait for the jobs that it made.
func (m *Machine) treeListed(t *tx, j *record.Job) error {
	if j.Done >= j.Total || j.Ending != 0 {
		return m.endTree(t, j)
	}
	t.unindexJob(j)
	j.State, j.Until = wire.JobState_JOB_STATE_RUNNING, math.MaxUint64 // nobody's lease, and it never ends
	t.put(t.k.jobLease(j.Until, j.Id), []byte{record.JobVersion})
	t.putJob(j)
	return nil
}

// cancelTree stops a tree's job: what it has queued goes on.
func (m *Machine) cancelTree(t *tx, j *record.Job, reason string) error {
	j.Ending, j.Err = wire.JobState_JOB_STATE_CANCELED, reason
	if j.State == wire.JobState_JOB_STATE_RUNNING {
		return m.endTree(t, j)
	}
	t.putJob(j) // ends once it has forgotten what it had yet to list
	return nil
}

func (m *Machine) endTree(t *tx, j *record.Job) error {
	switch {
	case j.Ending != 0:
		return m.endJob(t, j, j.Ending, j.Err)
	case j.Err != "":
		return m.endJob(t, j, wire.JobState_JOB_STATE_FAILED, j.Err)
	}
	return m.endJob(t, j, wire.JobState_JOB_STATE_DONE, "")
}

// childEnded counts a job that a tree's job waits for.
func (m *Machine) childEnded(t *tx, parent moraine.JobID, why string) error {
	if parent == 0 {
		return nil
	}
	j, err := t.job(parent)
	if err != nil || j == nil || !j.Live() {
		return err
	}
	j.Done++
	if why != "" {
		j.Failed(why)
	}
	if j.State == wire.JobState_JOB_STATE_RUNNING && j.Done >= j.Total {
		return m.endTree(t, j)
	}
	t.putJob(j)
	return nil
}
