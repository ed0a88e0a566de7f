package raftstore

import (
	"errors"
	"fmt"
	"path/filepath"
)

// reconcile makes log, state and snapshots consistent after a stop at any point of a restore. It
// refuses a directory with missing parts.
func (m *machine) reconcile(log *raftLog) error {
	index, err := applied(m.state.db)
	if err != nil {
		return err
	}
	snap := m.snapshots.newest()
	if snap != nil && index < snap.applied {
		// The node stopped after it received a snapshot and before the state was replaced, or the
		// state was lost. Raft will begin after the snapshot.
		if err := m.restore(snap); err != nil {
			return fmt.Errorf("restore the state from snapshot %d: %w", snap.meta.Index, err)
		}
	} else {
		m.last.raise(index)
	}
	return log.reconcile(snap, index)
}

// reconcile drops a log that the newest snapshot has replaced. Raft deletes the log after it
// received a snapshot, and the node may stop before.
func (l *raftLog) reconcile(snap *snapshot, applied uint64) error {
	first, err := l.FirstIndex()
	if err != nil {
		return err
	}
	last, err := l.LastIndex()
	if err != nil {
		return err
	}
	stale, err := l.replacedBy(snap)
	if err != nil {
		return err
	}
	if stale {
		return l.reset()
	}
	var covered uint64
	if snap != nil {
		covered = snap.meta.Index
	}
	// A received snapshot may have more entries than it says, because its source continued
	// meanwhile. The log that raft dropped for it is not missing.
	received := snap != nil && snap.form != snapTaken
	if first > covered+1 || (last == 0 && covered < applied && !received) {
		return corruptf("the log begins at %d, the newest snapshot ends at %d, the state at %d: entries are missing",
			first, covered, applied)
	}
	return nil
}

// restore replaces the state by a snapshot's: it writes a new database next to the current one and
// exchanges them. The snapshot must not be removed meanwhile.
func (m *machine) restore(snap *snapshot) error {
	start := m.deps.Clock.Now()
	number := m.state.number + 1
	dir := m.state.path(number)
	if err := m.deps.FS.RemoveAll(dir); err != nil {
		return err
	}
	if err := m.snapshots.layOut(snap, dir); err != nil {
		return errors.Join(err, m.deps.FS.RemoveAll(dir))
	}
	// dir may be the name of an interrupted restore whose files were removed without a sync. After
	// a power cut CURRENT must not name those.
	if err := m.deps.FS.SyncDir(filepath.Dir(dir)); err != nil {
		return err
	}
	if err := m.state.exchange(number); err != nil {
		m.fatal.set(fmt.Errorf("exchange the state: %w", err))
		return err
	}
	index, err := applied(m.state.db)
	if err != nil {
		return err
	}
	if index < snap.applied {
		return corruptf("snapshot: its state ends at %d, it says at %d", index, snap.applied)
	}
	m.last.raise(index)
	m.deps.Metrics.Snapshots.WithLabelValues("restored").Inc()
	m.deps.Metrics.SnapshotSeconds.Observe(m.deps.Clock.Since(start).Seconds())
	m.deps.Log.Info("state restored from a snapshot", "index", index)
	return nil
}
