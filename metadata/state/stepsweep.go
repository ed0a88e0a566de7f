package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// A checkpoint that goes by the unlink of its index leaves its directory to the one that is
// emptying it (removeFromStep). One that stops in between leaves files that are no
// checkpoint any more. A job sweeps them up: the files that were sealed, once nobody has
// changed the directory for sweepGrace, and the directory when nothing else is in it. What
// somebody has put there since stays, and so does a directory that was moved away.

// sweepGrace is for how long a directory that was being emptied must have been left alone,
// in milliseconds.
const sweepGrace = 60_000

// sweepStep has a job remove what is left in the directory of a removed step, and the rows
// of its parts.
func (m *Machine) sweepStep(t *tx, id record.StepID, dir moraine.InodeID) error {
	_, err := m.addJob(t, jobSpec{kind: wire.JobKind_JOB_KIND_REMOVE_TREE, subject: id.String(), step: id, target: uint64(dir),
		after: t.clusterTime() + sweepGrace})
	return err
}

// runSweep does about limit records of a job made by sweepStep, until its directory is done:
// then the job has no target any more.
func (m *Machine) runSweep(t *tx, j *record.Job, limit int) (n int, err error) {
	before := len(t.order)
	dir, err := t.inode(moraine.InodeID(j.Target))
	if moraineKind(err) == moraine.NotFound || err == nil && (dir.Nlink == 0 || dir.Sealed || dir.Typ != record.TypeDirectory) {
		j.Target, j.Cursor = 0, nil // whoever was emptying it has done so
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if wait, err := t.sweepWaits(j, dir); wait || err != nil {
		return 0, err
	}
	parent, name, err := t.nameOf(dir)
	if err != nil {
		return 0, err
	}
	if e, ok, err := t.lookup(moraine.InodeID(j.Step.Run), j.Step.AttemptDir()); err != nil || !ok || e.Inode != parent || name != j.Step.Name() {
		j.Target, j.Cursor = 0, nil // somebody has moved it away, to keep it
		return 0, err
	}
	names, entries, err := t.listDir(dir.Id, string(j.Cursor), max(min(limit, removeBudget)/8, 1))
	if err != nil {
		return 0, err
	}
	for i, name := range names {
		child, err := t.inode(entries[i].Inode)
		if err != nil {
			return 0, damaged(err)
		}
		j.Cursor = []byte(name)
		if child.Typ != record.TypeFile || !child.Sealed {
			continue
		}
		m.unlink(t, dir, name, child)
		if err := m.dropName(t, child, name); err != nil {
			return 0, err
		}
		if len(t.order)-before >= limit {
			return len(t.order) - before, nil
		}
	}
	if len(names) > 0 {
		return len(t.order) - before, nil
	}
	j.Target, j.Cursor = 0, nil
	if dir.Entries > 0 {
		return 0, nil
	}
	above, err := t.inode(parent)
	if err != nil {
		return 0, damaged(err)
	}
	m.unlink(t, above, name, dir)
	return len(t.order) - before, m.dropName(t, dir, name)
}

// sweepWaits puts a sweep off while its directory is being emptied, or is a client's alone.
func (t *tx) sweepWaits(j *record.Job, dir *record.Inode) (bool, error) {
	held, err := t.holder(dir.Id)
	if err == nil && held.Session == 0 {
		held, err = t.holder(dir.Parent)
	}
	if err != nil {
		return false, err
	}
	if held.Session == 0 && (len(j.Cursor) > 0 || t.now-dir.Mtime >= sweepGrace*1_000_000) {
		return false, nil
	}
	t.unindexJob(j)
	j.After = t.clusterTime() + sweepGrace
	t.put(t.k.jobReady(uint8(j.Kind), j.After, j.Id), []byte{record.JobVersion})
	return true, nil
}
