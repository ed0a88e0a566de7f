package raftstore

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/hashicorp/raft"

	"github.com/morainefs/moraine"
)

// Restore makes cfg.Dir, which must be empty or missing, a group of only this
// node. It has the state of a backup and the incarnation begin, whose entry is
// the first in its log. It checks the backup before it writes anything. An
// interrupted Restore may be repeated. The result has the exact index of the
// last entry in the state. It does not use deps.FSM and deps.Stream.
func Restore(cfg Config, deps Deps, backup io.ReaderAt, size int64, begin Beginning) (BackupInfo, error) {
	const op = "raftstore.Restore"
	cfg.setDefaults()
	deps.setDefaults()
	info, err := ReadBackup(backup, size)
	if err != nil {
		return info, err
	}
	cfg.Cluster = info.Cluster
	if uint64(begin.Incarnation.Number) <= info.Incarnation {
		return info, &moraine.Error{Op: op, Ref: cfg.Dir, Kind: moraine.InvalidArgument,
			Err: fmt.Errorf("incarnation %d is not greater than %d, the backup's own", begin.Incarnation.Number, info.Incarnation)}
	}
	if err := cfg.validate(); err != nil {
		return info, &moraine.Error{Op: op, Ref: cfg.Dir, Kind: moraine.InvalidArgument, Err: err}
	}
	id, err := readIdentity(deps.FS, cfg.Dir)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return info, wrap(op, cfg.Dir, err)
	case err == nil && id.formed:
		return info, &moraine.Error{Op: op, Ref: cfg.Dir, Kind: moraine.Exists,
			Err: errors.New("the directory already belongs to a metadata server: name an empty one")}
	}
	as := identity{admitted: true, entered: true, incarnation: begin.Incarnation}
	err = form(&cfg, &deps, as, func(cfg *Config, deps *Deps) error { return fillFrom(cfg, deps, &info, backup, begin.Entry) })
	return info, wrap(op, cfg.Dir, err)
}

func (c *Config) alone() raft.Configuration {
	self, _ := c.peer(c.Node)
	return raft.Configuration{Servers: []raft.Server{{Suffrage: raft.Voter, ID: raft.ServerID(c.Node), Address: raft.ServerAddress(self.Address)}}}
}

// fillFrom writes the snapshot and the log of a restored node. It sets info.Applied to the index of
// the state.
func fillFrom(cfg *Config, deps *Deps, info *BackupInfo, backup io.ReaderAt, first []byte) error {
	store, err := openSnapshots(cfg, deps, nil)
	if err != nil {
		return err
	}
	// The state may have more entries than the backup says, because its source continued meanwhile.
	// The log must begin after the last of them, otherwise its entries would be skipped.
	reached, err := streamReach(cfg, deps, backupStream(backup, *info))
	if err != nil {
		return err
	}
	info.Applied = max(info.Applied, reached)
	sink, err := store.Create(raft.SnapshotVersionMax, info.Applied, info.Term, cfg.alone(), info.Applied, nil)
	if err != nil {
		return err
	}
	if _, err := io.Copy(sink, backupStream(backup, *info)); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	if err := sink.Close(); err != nil {
		return err
	}
	log, err := openLog(cfg, deps, nil)
	if err != nil {
		return err
	}
	err = storeInNextTerm(log, info.Term, []*raft.Log{
		{Index: info.Applied + 1, Type: raft.LogCommand, Data: first, AppendedAt: deps.Clock.Now()}})
	return errors.Join(err, log.Close())
}

// storeInNextTerm appends entries under the term after term, because abandoned servers may have
// other entries with these indexes in term itself. It sets the node's own term first: no log may
// have an entry of a term in which the node could campaign. A vote of an earlier term does not
// count in a later one.
func storeInNextTerm(log *raftLog, term uint64, entries []*raft.Log) error {
	for _, e := range entries {
		e.Term = term + 1
	}
	if err := log.SetUint64([]byte("CurrentTerm"), term+1); err != nil {
		return err
	}
	return log.StoreLogs(entries)
}

// streamReach returns the index of the last entry in the state of a stream. It extracts the state
// to the place of the node's first database and removes it again; cfg.Dir must have no state yet.
func streamReach(cfg *Config, deps *Deps, stream io.Reader) (index uint64, err error) {
	r, err := newStreamReader(stream, cfg.Cluster)
	if err != nil {
		return 0, err
	}
	s := &stateDB{fs: deps.FS, dir: filepath.Join(cfg.Dir, stateDir)}
	dir := s.path(1)
	if err := deps.FS.RemoveAll(dir); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, deps.FS.RemoveAll(dir)) }()
	if err := r.extract(deps.FS, dir); err != nil {
		return 0, err
	}
	db, err := openReadOnly(deps.FS, dir)
	if err != nil {
		return 0, err
	}
	index, err = applied(db)
	return index, errors.Join(err, db.Close())
}
