package state

import (
	"math"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// queueTree makes a job that queues a move of every file below a directory.
func (m *Machine) queueTree(t *tx, kind wire.JobKind, dir *inode) (moraine.JobID, error) {
	path, ok, err := t.pathOf(dir)
	if err != nil {
		return 0, err
	}
	if !ok || path == "" {
		path = "/"
	}
	id, err := m.addJob(t, jobSpec{kind: wire.JobKind_JOB_KIND_MOVE_TREE, subject: clip(path, moraine.MaxNameLen), target: uint64(dir.id), moves: kind})
	if err != nil {
		return 0, err
	}
	t.put(t.k.treeDir(id, dir.id), putString([]byte{jobVersion}, ""))
	return id, nil
}

// runMoveTree lists what is below about limit records' worth of directories,
// one directory after the other, and queues moves of files. When it has seen all
// it waits for the jobs that it made. It returns whether it has ended, or waits:
// then the job is written.
func (m *Machine) runMoveTree(t *tx, j *job, limit int) (over bool, err error) {
	before := len(t.order)
	for len(t.order)-before < limit {
		keys, err := t.keysUnder(t.k.treeDirs(j.id), 1)
		if err != nil {
			return false, err
		}
		if len(keys) == 0 {
			return true, m.treeListed(t, j)
		}
		if j.ending != 0 {
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
func (m *Machine) listTreeDir(t *tx, j *job, key []byte, stop int) error {
	after, err := t.treeCursor(key)
	if err != nil {
		return err
	}
	dir := moraine.InodeID(lastU64(key))
	most := max((stop-len(t.order))/8, 1)
	if j.scope != 0 {
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
		if entries[n].typ == typeDirectory {
			if name == moraine.UploadsDir {
				continue
			}
			t.put(t.k.treeDir(j.id, entries[n].inode), putString([]byte{jobVersion}, ""))
			continue
		}
		if entries[n].typ != typeFile {
			continue
		}
		i, err := t.inode(entries[n].inode)
		if err != nil {
			return damaged(err)
		}
		need, why, err := t.needs(j.moves, i)
		if err != nil {
			return err
		}
		if !need {
			if why != "" {
				j.failed(name + ": " + why)
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
	t.put(key, putString([]byte{jobVersion}, names[len(names)-1]))
	return nil
}

func (v *view) treeCursor(key []byte) (string, error) {
	b, ok, err := v.r.Get(key)
	if err != nil || !ok {
		return "", err
	}
	return decodeTreeDir(b)
}

func decodeTreeDir(b []byte) (string, error) {
	d := dec{b: b}
	d.version(jobVersion)
	name := d.string()
	return name, d.end("directory of a tree")
}

// queueChild queues a move of a file on behalf of a tree's job, which counts it
// unless another tree's does.
func (m *Machine) queueChild(t *tx, j *job, i *inode) error {
	counted, err := m.counted(t, j, i)
	if err != nil {
		return err
	}
	id, err := m.queueFile(t, j.moves, i, j.id)
	if err != nil {
		return err
	}
	child, err := t.job(id)
	if err == nil && child.parent == j.id && !counted {
		j.total++
	}
	return err
}

// counted reports whether a tree's job has met a file before, under another
// name, or before a rename, and waits for its move.
func (m *Machine) counted(t *tx, j *job, i *inode) (bool, error) {
	child, err := t.moveOf(i.id, j.moves)
	if err != nil || child == nil || child.parent != j.id {
		return false, err
	}
	return t.speaks(levelNewest)
}

// treeListed ends a tree's job whose directories have all been seen, or has it
// wait for the jobs that it made.
func (m *Machine) treeListed(t *tx, j *job) error {
	if j.done >= j.total || j.ending != 0 {
		return m.endTree(t, j)
	}
	t.unindexJob(j)
	j.state, j.until = wire.JobState_JOB_STATE_RUNNING, math.MaxUint64 // nobody's lease, and it never ends
	t.put(t.k.jobLease(j.until, j.id), []byte{jobVersion})
	t.putJob(j)
	return nil
}

// cancelTree stops a tree's job: what it has queued goes on.
func (m *Machine) cancelTree(t *tx, j *job, reason string) error {
	j.ending, j.err = wire.JobState_JOB_STATE_CANCELED, reason
	if j.state == wire.JobState_JOB_STATE_RUNNING {
		return m.endTree(t, j)
	}
	t.putJob(j) // ends once it has forgotten what it had yet to list
	return nil
}

func (m *Machine) endTree(t *tx, j *job) error {
	switch {
	case j.ending != 0:
		return m.endJob(t, j, j.ending, j.err)
	case j.err != "":
		return m.endJob(t, j, wire.JobState_JOB_STATE_FAILED, j.err)
	}
	return m.endJob(t, j, wire.JobState_JOB_STATE_DONE, "")
}

// failed keeps the first reason for which not everything was done.
func (j *job) failed(why string) {
	if j.err == "" {
		j.err = clip(why, moraine.MaxNameLen)
	}
}

// childEnded counts a job that a tree's job waits for.
func (m *Machine) childEnded(t *tx, parent moraine.JobID, why string) error {
	if parent == 0 {
		return nil
	}
	j, err := t.job(parent)
	if err != nil || j == nil || !j.live() {
		return err
	}
	j.done++
	if why != "" {
		j.failed(why)
	}
	if j.state == wire.JobState_JOB_STATE_RUNNING && j.done >= j.total {
		return m.endTree(t, j)
	}
	t.putJob(j)
	return nil
}
