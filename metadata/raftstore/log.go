package raftstore

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/segment"

	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/vfs"
)

// raftLog is the log and raft's stable store: raft-wal on the file-system seam. It adds a watch on
// the duration of appends, the retention rules, and the rule that the first failed write ends the
// node.
type raftLog struct {
	*wal.WAL
	fs      vfs.FS
	dir     string
	clock   clock.Clock
	metrics *Metrics

	retention      time.Duration
	retentionBytes int64
	took           latencies // durations of StoreLogs

	// checkEntry is Deps.CheckEntry.
	checkEntry func(entry []byte) error
	// fail ends the node; it does not return. It is nil outside of Run.
	fail func(error)
	// opened is the origin of since. since is when the write in progress began, in nanoseconds; 0
	// if there is none.
	opened time.Time
	since  atomic.Int64

	// low reports whether the disk is nearly full. Entries covered by a snapshot are then deleted
	// at once. It is nil outside of Run.
	low func() bool
	// heldFrom returns the first entry that is kept whatever its age; 0 for none. It is nil outside
	// of Run.
	heldFrom func() uint64
	// newest returns the newest snapshot's index and term. It is nil outside of Run.
	newest func() (index, term uint64)
	// segmentFailed is walFS.failed.
	segmentFailed *atomic.Pointer[error]
	// ghosts is the index up to which raft believes that entries exist; see GetLog. 0: raft's view
	// is right.
	ghosts atomic.Uint64
}

var (
	_ raft.LogStore          = (*raftLog)(nil)
	_ raft.StableStore       = (*raftLog)(nil)
	_ raft.MonotonicLogStore = (*raftLog)(nil)
)

// openLog opens the log of cfg.Dir and repairs it if necessary.
func openLog(cfg *Config, deps *Deps, fail func(error)) (*raftLog, error) {
	dir := filepath.Join(cfg.Dir, logDir)
	meta := newMetaStore(deps.FS, dir)
	if err := meta.open(); err != nil {
		return nil, fmt.Errorf("open log metadata: %w", err)
	}
	if err := recoverLog(deps.FS, dir, meta, deps.Clock.Now()); err != nil {
		return nil, fmt.Errorf("recover log: %w", err)
	}
	segmentFailed := new(atomic.Pointer[error])
	w, err := wal.Open(dir,
		wal.WithMetaStore(meta),
		wal.WithSegmentFiler(segment.NewFiler(dir, walFS{deps.FS, segmentFailed})),
		wal.WithSegmentSize(cfg.SegmentBytes),
		wal.WithLogger(newHCLog(deps.Log.With("part", "log"))),
	)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	return &raftLog{
		WAL: w, fs: deps.FS, dir: dir, clock: deps.Clock, opened: deps.Clock.Now(), metrics: deps.Metrics,
		retention: cfg.LogRetention, retentionBytes: cfg.LogRetentionBytes,
		checkEntry: deps.CheckEntry, fail: fail, segmentFailed: segmentFailed,
	}, nil
}

// guard runs a write. A failed write leaves unknown bytes, and raft would continue as a follower
// and append again. The node therefore ends, and finds out at its next start what the disk has.
func (l *raftLog) guard(what string, write func() error) error {
	l.since.Store(int64(l.clock.Since(l.opened)) + 1)
	err := write()
	l.since.Store(0)
	if cause := l.segmentFailed.Load(); err != nil && cause != nil {
		err = errors.Join(err, *cause)
	}
	if err != nil && l.fail != nil {
		l.fail(fmt.Errorf("%s: %w", what, err))
	}
	return err
}

// stalled returns how long the write in progress has lasted.
func (l *raftLog) stalled() time.Duration {
	since := l.since.Load()
	if since == 0 {
		return 0
	}
	return l.clock.Since(l.opened) - time.Duration(since)
}

// StoreLogs implements raft.LogStore: when it returns nil the entries are
// durable.
func (l *raftLog) StoreLogs(logs []*raft.Log) error {
	if err := l.endGhosts(logs[0].Index); err != nil {
		return err
	}
	start := l.clock.Now()
	err := l.guard("append to the log", func() error { return l.WAL.StoreLogs(logs) })
	took := l.clock.Since(start)
	l.metrics.AppendSeconds.Observe(took.Seconds())
	l.took.observe(took)
	return err
}

// StoreLog implements raft.LogStore.
func (l *raftLog) StoreLog(log *raft.Log) error { return l.StoreLogs([]*raft.Log{log}) }

// Set implements raft.StableStore.
func (l *raftLog) Set(key, value []byte) error {
	return l.guard("store "+string(key), func() error { return l.WAL.Set(key, value) })
}

// SetUint64 implements raft.StableStore.
func (l *raftLog) SetUint64(key []byte, value uint64) error {
	return l.guard("store "+string(key), func() error { return l.WAL.SetUint64(key, value) })
}

// DeleteRange implements raft.LogStore. Raft requests the deletion of a prefix once a snapshot
// covers it. This method decides how much of it goes, because raft only counts entries; on a nearly
// full disk all of it goes. A suffix (a conflict) or the whole log (an installed snapshot) goes at
// once.
func (l *raftLog) DeleteRange(lo, hi uint64) error {
	first, err := l.FirstIndex()
	if err != nil {
		return err
	}
	last, err := l.LastIndex()
	if err != nil {
		return err
	}
	if last == 0 {
		return nil // raft removes ghosts
	}
	if lo <= first && hi >= last {
		if err := l.makeGhosts(last); err != nil {
			return err
		}
	}
	if lo <= first && hi < last && (l.low == nil || !l.low()) {
		if hi, err = l.expired(first, hi, last); err != nil || hi < first {
			return err
		}
	}
	return l.guard("truncate the log", func() error { return l.WAL.DeleteRange(lo, hi) })
}

// makeGhosts is called before all entries are deleted for an installed snapshot.
//
// Raft v1.8.0 then still believes that its log ends where it ended. It may not
// be before the snapshot's end: the entries were a deposed leader's and never
// committed. Then raft finds nothing where the leader's next message begins,
// and refuses it. The leader at once sends the snapshot again, and so on for
// ever. GetLog therefore returns entries with which raft continues.
func (l *raftLog) makeGhosts(last uint64) error {
	if l.newest == nil {
		return nil
	}
	index, term := l.newest()
	switch {
	case last > index:
		l.ghosts.Store(last)
	case last == index:
		// raft would use the term from memory.
		var entry raft.Log
		if err := l.GetLog(last, &entry); err != nil {
			return err
		}
		if entry.Term != term {
			return l.guard("replace the log by a snapshot", func() error { return errRestart })
		}
	}
	return nil
}

// GetLog implements raft.LogStore. A snapshot that ends earlier may have
// replaced the log. Then it returns the snapshot's last entry, which matches
// the leader's, followed by entries of no term, which do not match. Raft then
// deletes those and appends the leader's.
func (l *raftLog) GetLog(index uint64, out *raft.Log) error {
	err := l.WAL.GetLog(index, out)
	if err == nil {
		return l.check(out)
	}
	ghosts := l.ghosts.Load()
	if ghosts == 0 || !errors.Is(err, raft.ErrLogNotFound) {
		return err
	}
	snap, term := l.newest()
	switch {
	case index == snap:
		*out = raft.Log{Index: index, Term: term, Type: raft.LogNoop}
	case snap < index && index <= ghosts:
		*out = raft.Log{Index: index, Type: raft.LogNoop}
	default:
		return err
	}
	return nil
}

// check verifies a command that was read against its own checksum and ends the node if it is
// damaged; raft-wal verifies none. Apply would find the damage too, but a leader sends what it
// reads to followers. They would store it and end because of another node's disk.
func (l *raftLog) check(entry *raft.Log) error {
	if l.checkEntry == nil || entry.Type != raft.LogCommand {
		return nil
	}
	err := l.checkEntry(entry.Data)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("read log entry %d on this disk: %w", entry.Index, err)
	if l.fail != nil {
		l.fail(err)
	}
	return err
}

// endGhosts is called before entries are appended from index on. Raft's view of
// the log is right after that. A node that was elected while raft believes in
// missing entries would leave a gap, and ends. After a restart its view is
// right too.
func (l *raftLog) endGhosts(index uint64) error {
	if l.ghosts.Load() == 0 {
		return nil
	}
	if snap, _ := l.newest(); index != snap+1 {
		return l.guard("append to the log", func() error { return errRestart })
	}
	l.ghosts.Store(0)
	return nil
}

// errRestart ends a node that recovers by a restart.
var errRestart = errors.New("raft does not know that a snapshot has replaced its log; start the node again")

// expired returns the last index of [first, hi] that retention no longer protects; first-1 if there
// is none.
func (l *raftLog) expired(first, hi, last uint64) (uint64, error) {
	byAge, err := l.firstYoung(first, hi)
	if err != nil {
		return 0, err
	}
	bySize, err := l.firstWithin(last)
	if err != nil {
		return 0, err
	}
	end := min(hi, max(byAge, bySize)-1)
	if l.heldFrom != nil {
		if from := l.heldFrom(); from > 0 {
			end = min(end, from-1)
		}
	}
	return end, nil
}

// firstYoung returns the first index in [first, hi+1] that is younger than the retention. Entries
// have the time at which their leader appended them. Clock differences only change how much is
// kept.
func (l *raftLog) firstYoung(first, hi uint64) (uint64, error) {
	now := l.clock.Now()
	lo, end := first, hi+1
	for lo < end {
		mid := lo + (end-lo)/2
		var entry raft.Log
		if err := l.GetLog(mid, &entry); err != nil {
			return 0, err
		}
		if now.Sub(entry.AppendedAt) > l.retention {
			lo = mid + 1
		} else {
			end = mid
		}
	}
	return lo, nil
}

// firstWithin returns the base index of the oldest segment with which the newest segments are
// within the size bound. last is the end of the log.
func (l *raftLog) firstWithin(last uint64) (uint64, error) {
	names, err := l.fs.List(l.dir)
	if err != nil {
		return 0, err
	}
	var total int64
	oldest := last
	for i := len(names) - 1; i >= 0; i-- { // names sort by base index
		var base, id uint64
		if n, _ := fmt.Sscanf(names[i], "%020d-%016x"+walSuffix, &base, &id); n != 2 {
			continue
		}
		info, err := l.fs.Stat(filepath.Join(l.dir, names[i]))
		if err != nil {
			return 0, err
		}
		if total += info.Size; total > l.retentionBytes {
			return oldest, nil
		}
		oldest = base
	}
	return 0, nil
}

// sizeBytes returns the bytes of all segments.
func (l *raftLog) sizeBytes() (int64, error) {
	names, err := l.fs.List(l.dir)
	if err != nil {
		return 0, err
	}
	var total int64
	for _, name := range names {
		info, err := l.fs.Stat(filepath.Join(l.dir, name))
		if err != nil {
			return 0, err
		}
		total += info.Size
	}
	return total, nil
}

// replacedBy reports whether a snapshot, which may be nil, has replaced the log: it was received,
// and the node stopped before raft deleted the log. The entries in the log then belong to nobody.
func (l *raftLog) replacedBy(snap *snapshot) (bool, error) {
	if snap == nil {
		return false, nil
	}
	first, err := l.FirstIndex()
	if err != nil {
		return false, err
	}
	last, err := l.LastIndex()
	if err != nil {
		return false, err
	}
	covered := snap.meta.Index
	if first > 0 && first <= covered && covered <= last {
		var entry raft.Log
		if err := l.GetLog(covered, &entry); err != nil {
			return false, err
		}
		return entry.Term != snap.meta.Term, nil
	}
	return last > 0 && last < covered, nil
}

// reset deletes every entry.
func (l *raftLog) reset() error {
	first, err := l.FirstIndex()
	if err != nil || first == 0 {
		return err
	}
	last, err := l.LastIndex()
	if err != nil {
		return err
	}
	return l.WAL.DeleteRange(first, last)
}

// errStalled says that a write to the log has not returned.
var errStalled = errors.New("the disk of the log hangs")
