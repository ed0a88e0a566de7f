package raftstore

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
)

// Survey describes the contents of a node's directory.
type Survey struct {
	Identity
	// Members are the members in the newest configuration, Voters the number with a vote.
	Members []string
	Voters  int
	// LastIndex is the newest index in the log, a snapshot or the state. LastTerm is the newest
	// term in the first two. Appended is when the leader appended that entry; zero if the log does
	// not say.
	LastIndex, LastTerm uint64
	Appended            time.Time
	// Snapshot is the last index in the newest snapshot; 0 if there is none.
	Snapshot uint64
	// logLast is the last index of the log; 0 if the log no longer counts because a received
	// snapshot replaced it.
	logLast uint64
	stale   bool
}

// Beginning is the start of a new incarnation of the metadata: its identity, and the log entry that
// records it in the state.
type Beginning struct {
	Incarnation moraine.MarkedIncarnation
	Entry       []byte
}

// SurveyNode describes the node of cfg.Dir, which must not run. It changes nothing.
func SurveyNode(cfg Config, deps Deps) (Survey, error) {
	return offline("raftstore.SurveyNode", cfg, deps, survey)
}

// ForceAlone makes the node of cfg.Dir, which must not run, a group of its own. It appends a
// configuration with only this node, and begin's entry, to the log, and gives the directory begin's
// incarnation. The node's entries then count, committed or not; entries only on other nodes are
// lost. Each repetition appends again.
func ForceAlone(cfg Config, deps Deps, begin Beginning) (Survey, error) {
	return offline("raftstore.ForceAlone", cfg, deps, func(cfg *Config, deps *Deps, log *raftLog) (Survey, error) {
		sv, err := survey(cfg, deps, log)
		if err != nil {
			return sv, err
		}
		return sv, forceAlone(cfg, deps, log, &sv, begin)
	})
}

// offline runs work on the log of a directory whose node does not run.
func offline(op string, cfg Config, deps Deps, work func(*Config, *Deps, *raftLog) (Survey, error)) (sv Survey, err error) {
	cfg.setDefaults()
	deps.setDefaults()
	id, err := ReadIdentity(deps.FS, cfg.Dir)
	if err != nil {
		return sv, err
	}
	if id.Node != cfg.Node {
		return sv, &moraine.Error{Op: op, Ref: cfg.Dir, Kind: moraine.InvalidArgument, Err: fmt.Errorf("the directory belongs to %s, not to %s", id.Node, cfg.Node)}
	}
	cfg.Cluster = id.Cluster
	if err := cfg.validate(); err != nil {
		return sv, &moraine.Error{Op: op, Ref: cfg.Dir, Kind: moraine.InvalidArgument, Err: err}
	}
	lock, err := deps.FS.Lock(filepath.Join(cfg.Dir, lockFile))
	if err != nil {
		return sv, lockError(cfg.Dir, err)
	}
	defer func() { err = wrap(op, cfg.Dir, errors.Join(err, lock.Close())) }()
	log, err := openLog(&cfg, &deps, nil)
	if err != nil {
		return sv, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	sv, err = work(&cfg, &deps, log)
	sv.Identity = id
	return sv, err
}

// forceAlone writes the log first. If it stops before it writes IDENTITY, the node belongs to the
// incarnation of its state, without a mark, and the command can be repeated.
func forceAlone(cfg *Config, deps *Deps, log *raftLog, sv *Survey, begin Beginning) error {
	term, err := log.GetUint64([]byte("CurrentTerm"))
	if err != nil {
		return err
	}
	if sv.stale { // as the node's start would do; done later, it would also remove what follows
		if err := log.reset(); err != nil {
			return err
		}
	}
	now := deps.Clock.Now()
	var entries []*raft.Log
	// The state may be ahead of the log and the snapshot, for example after a received snapshot.
	// Entries that the state seems to have would be skipped.
	for i := max(sv.logLast, sv.Snapshot) + 1; i <= sv.LastIndex; i++ {
		entries = append(entries, &raft.Log{Index: i, Type: raft.LogNoop, AppendedAt: now})
	}
	entries = append(entries,
		&raft.Log{Index: sv.LastIndex + 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(cfg.alone()), AppendedAt: now},
		&raft.Log{Index: sv.LastIndex + 2, Type: raft.LogCommand, Data: begin.Entry, AppendedAt: now})
	if err := storeInNextTerm(log, max(term, sv.LastTerm), entries); err != nil {
		return err
	}
	id, err := readIdentity(deps.FS, cfg.Dir)
	if err != nil {
		return err
	}
	id.admitted, id.entered, id.incarnation, id.outlivedBy = true, true, begin.Incarnation, 0
	// COMMIT POINT of a forced quorum.
	return replaceFile(deps.FS, cfg.Dir, identityFile, id.encode())
}

// survey reads the contents of a log, and of the snapshots and the state next to it.
func survey(cfg *Config, deps *Deps, log *raftLog) (Survey, error) {
	var sv Survey
	snapshots, err := openSnapshots(cfg, deps, nil)
	if err != nil {
		return sv, err
	}
	var conf raft.Configuration
	snap := snapshots.newest()
	if snap != nil {
		sv.LastIndex, sv.LastTerm, sv.Snapshot, conf = snap.meta.Index, snap.meta.Term, snap.meta.Index, snap.meta.Configuration
	}
	if sv.stale, err = log.replacedBy(snap); err != nil {
		return sv, err
	}
	if !sv.stale {
		if err := sv.readLog(log, &conf); err != nil {
			return sv, err
		}
	}
	for _, s := range conf.Servers {
		sv.Members = append(sv.Members, string(s.ID))
		if s.Suffrage == raft.Voter {
			sv.Voters++
		}
	}
	slices.Sort(sv.Members)
	reached, err := stateReach(deps.FS, cfg.Dir)
	if err != nil {
		return sv, err
	}
	if snap != nil {
		reached = max(reached, snap.applied)
	}
	sv.LastIndex = max(sv.LastIndex, reached)
	if sv.LastIndex == 0 {
		return sv, &moraine.Error{Op: "raftstore", Ref: cfg.Dir, Kind: moraine.NotFound, Err: errors.New("the directory has no log entry to continue from")}
	}
	return sv, nil
}

// readLog reads the entries of a log that counts.
func (sv *Survey) readLog(log *raftLog, conf *raft.Configuration) error {
	first, err := log.FirstIndex()
	if err != nil {
		return err
	}
	last, err := log.LastIndex()
	if err != nil {
		return err
	}
	for i := first; i > 0 && i <= last; i++ {
		var entry raft.Log
		if err := log.GetLog(i, &entry); err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		if entry.Type == raft.LogConfiguration && i > sv.Snapshot {
			*conf = raft.DecodeConfiguration(entry.Data)
		}
		if i >= sv.LastIndex {
			sv.LastIndex, sv.LastTerm, sv.Appended = entry.Index, entry.Term, entry.AppendedAt
		}
	}
	sv.logLast = last
	return nil
}

// stateReach returns the last index in the state of a directory; 0 if there is no state yet.
func stateReach(fsys vfs.FS, dir string) (index uint64, err error) {
	err = InspectState(fsys, dir, func(_ kvtx.Reader, applied uint64) error {
		index = applied
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	return index, err
}
