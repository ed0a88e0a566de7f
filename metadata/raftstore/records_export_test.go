package raftstore

import (
	"log/slog"

	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
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
func (s *StateForTest) Apply(index uint64, change func(kvtx.KV) error) error {
	kv := s.db.newApplyKV()
	if err := change(kv); err != nil {
		return err
	}
	return s.db.commit(kv, index)
}

// View reads the state.
func (s *StateForTest) View(fn func(r kvtx.Reader, applied uint64) error) error {
	return s.db.read(func(r viewReader, applied uint64) error { return fn(r, applied) })
}

// Ended is the error that ends the node of the state, nil while there is none.
func (s *StateForTest) Ended() error { return s.db.fatal.err() }

// Spill writes what was committed to the database's table in memory, and with flush on to disk.
func (s *StateForTest) Spill(flush bool) error {
	if err := s.db.spill(); err != nil || !flush {
		return err
	}
	return s.db.db.Flush()
}

// Forget empties the cache of records.
func (s *StateForTest) Forget() { s.db.records = newRecords(s.db.cfg.RecordCacheBytes, s.db.reached) }

// FlipStored changes one bit of what the database has for key, where it has it in memory: in
// its table, or in its cache of blocks.
func (s *StateForTest) FlipStored(key []byte, bit int) error {
	stored, closer, err := s.db.db.Get(key)
	if err != nil {
		return err
	}
	bit %= 8 * len(stored)
	stored[bit/8] ^= 1 << (bit % 8)
	return closer.Close()
}
