package raftstore

import (
	"log/slog"

	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/state"
)

// StateForTest is a state without a log.
type StateForTest struct{ db *stateDB }

// OpenStateForTest opens a state on fs that keeps about records bytes of them.
func OpenStateForTest(fs vfs.FS, records int64) (*StateForTest, error) {
	if err := fs.MkdirAll("state"); err != nil {
		return nil, err
	}
	cfg := &Config{CacheBytes: 1 << 20, MemTableBytes: 256 << 10, RecordCacheBytes: records}
	db, err := openState(cfg, &Deps{FS: fs, Log: slog.New(slog.DiscardHandler)}, newFatal())
	return &StateForTest{db}, err
}

// Close closes the state.
func (s *StateForTest) Close() error { return s.db.close() }

// Apply commits what change does to the state as entry index.
func (s *StateForTest) Apply(index uint64, change func(state.KV) error) error {
	kv := s.db.newApplyKV()
	if err := change(kv); err != nil {
		return err
	}
	return s.db.commit(kv, index)
}

// View reads the state.
func (s *StateForTest) View(fn func(r state.Reader, applied uint64) error) error {
	return s.db.read(func(r viewReader, applied uint64) error { return fn(r, applied) })
}
