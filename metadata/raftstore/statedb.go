package raftstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"

	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/internal/vfs/pebblevfs"
)

const (
	currentFile    = "CURRENT"
	currentMagic   = "MRNSTAT1"
	currentVersion = 1
	dbPrefix       = "db-"
)

// appliedKey holds {version 1, applied index (uint64, little-endian)}. It is
// written in the batch of the entries that it counts.
var appliedKey = []byte{0xff, 0xff, 'a'}

// stateDB is the state: a pebble database in the directory that CURRENT names.
//
// What is committed is gathered in layers above the database first, and spilled
// into it now and then. Reads go through views of both, which are shared by all reads
// between two commits, so that a read costs no snapshot of its own. Lock order: mu, then
// viewMu.
type stateDB struct {
	fs    vfs.FS
	dir   string // holds CURRENT and the databases
	cfg   *Config
	log   *slog.Logger
	fatal *fatal
	cache *pebble.Cache
	tune  func(*pebble.Options) // nil, but for a load

	// mu is held for reading while db is used, for writing to exchange it.
	mu      sync.RWMutex
	db      *pebble.DB
	wal     *stateLog       // of db
	records *records        // of db
	ends    *ends           // of db; the apply loop's
	writes  map[string]cell // memory for the next batch's; the apply loop's
	number  uint64          // db is in dir/db-<number>

	// viewMu is held to change the following, and by readers to read it. The apply
	// loop, which alone changes layers and reached, reads them without it.
	viewMu  sync.Mutex
	layers  *layers     // above db
	reached uint64      // index of the last entry that was committed
	view    *sharedView // nil after each commit, until somebody reads
}

// openState opens the current database, making the first one if there is none.
// Leftovers of restores that were cut short are removed.
func openState(cfg *Config, deps *Deps, fatal *fatal) (*stateDB, error) {
	s := newState(cfg, deps, fatal)
	if err := s.open(); err != nil {
		s.cache.Unref()
		return nil, fmt.Errorf("open state: %w", err)
	}
	return s, nil
}

// newState returns a state that is not open yet; close frees its cache.
func newState(cfg *Config, deps *Deps, fatal *fatal) *stateDB {
	return &stateDB{
		fs: deps.FS, dir: filepath.Join(cfg.Dir, stateDir), cfg: cfg, log: deps.Log, fatal: fatal,
		cache: pebble.NewCache(cfg.CacheBytes),
	}
}

func (s *stateDB) open() error {
	p, err := readFile(s.fs, filepath.Join(s.dir, currentFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// CURRENT is durable before the first entry is applied: what may be in a
		// first database without it is the remains of a cut-short start.
		s.number = 1
		if err := s.fs.RemoveAll(s.path(s.number)); err != nil {
			return err
		}
	case err != nil:
		return err
	default:
		if s.number, err = decodeCurrent(p); err != nil {
			return err
		}
	}
	if err := s.use(s.number); err != nil {
		return err
	}
	if p == nil {
		err = replaceFile(s.fs, s.dir, currentFile, encodeCurrent(s.number))
	}
	if err == nil {
		err = s.removeOthers()
	}
	if err != nil {
		return errors.Join(err, s.db.Close())
	}
	return nil
}

func encodeCurrent(number uint64) []byte {
	return seal(currentMagic, currentVersion, binary.LittleEndian.AppendUint64(nil, number))
}

func decodeCurrent(p []byte) (uint64, error) {
	body, _, err := unseal(currentMagic, currentVersion, p)
	if err != nil {
		return 0, err
	}
	r := reader{p: body}
	number := r.u64()
	if !r.done() || number == 0 {
		return 0, corruptf("%s does not parse", currentFile)
	}
	return number, nil
}

func (s *stateDB) path(number uint64) string {
	return filepath.Join(s.dir, fmt.Sprintf("%s%020d", dbPrefix, number))
}

// removeOthers removes databases that CURRENT does not name.
func (s *stateDB) removeOthers() error {
	names, err := s.fs.List(s.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		digits, ok := strings.CutPrefix(name, dbPrefix)
		if !ok {
			continue
		}
		if n, err := strconv.ParseUint(digits, 10, 64); err == nil && n == s.number {
			continue
		}
		if err := s.fs.RemoveAll(filepath.Join(s.dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// use opens, or makes, database number, and makes it the one that is used.
//
// The first thing that pebble.Open does is to sync s.dir: after it the database
// keeps its name, and a CURRENT that a killed process has renamed, and not
// synced, stays. So no other database may be removed before.
func (s *stateDB) use(number uint64) error {
	wal := &stateLog{fatal: s.fatal}
	db, err := pebble.Open(s.path(number), s.options(wal))
	if err != nil {
		return err
	}
	index, err := applied(db)
	if err != nil {
		return errors.Join(err, db.Close())
	}
	wal.used.Store(true)
	s.db, s.wal, s.records, s.ends, s.number = db, wal, newRecords(s.cfg.RecordCacheBytes, index), newEnds(), number
	return s.renew(func() { s.layers, s.reached = newLayers(), index })
}

func (s *stateDB) options(wal *stateLog) *pebble.Options {
	opts := &pebble.Options{
		FS:                    pebblevfs.WatchLogs(pebblevfs.New(s.fs), wal.failed),
		FormatMajorVersion:    pebble.FormatNewest,
		Cache:                 s.cache,
		MemTableSize:          uint64(s.cfg.MemTableBytes),
		L0CompactionThreshold: 4,
		Logger:                pebbleLog{log: s.log.With("part", "state"), fatal: s.fatal},
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) {
				s.log.Error("background work of the state failed, it will be tried again", "err", err)
			},
			WALCreated: wal.created,
		},
	}
	// pebble asks no filter of the last level, which holds nine tenths of the keys.
	for i := range len(opts.Levels) - 1 {
		opts.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	if s.tune != nil {
		s.tune(opts)
	}
	return opts
}

// applied returns the index of the last entry in r, 0 if there is none.
func applied(r pebble.Reader) (uint64, error) {
	value, _, ok, err := readValue(r, appliedKey)
	if err != nil || !ok {
		return 0, err
	}
	if len(value) != 9 || value[0] != 1 {
		return 0, corruptf("applied index %x", value)
	}
	return binary.LittleEndian.Uint64(value[1:]), nil
}

func encodeApplied(index uint64) []byte {
	return binary.LittleEndian.AppendUint64([]byte{1}, index)
}

// setApplied adds to batch the index of the last entry that it has.
func setApplied(batch *pebble.Batch, index uint64) error {
	value := encodeApplied(index)
	return batch.Set(appliedKey, sealValue(nil, value, valueSum(appliedKey, value)), nil)
}

// commit makes kv's writes visible as the state after entry index. They become
// durable with a flush after they were spilled; until then the log has them.
func (s *stateDB) commit(kv *applyKV, index uint64) error {
	s.layers.add(kv.writes, index)
	if err := s.renew(func() { s.reached = index }); err != nil {
		return err
	}
	if s.layers.full() {
		return s.spill()
	}
	return nil
}

// spill writes to the database what was committed since the last time, in one batch
// with the index of the last entry. It is for the goroutine that applies.
func (s *stateDB) spill() error {
	if len(s.layers.commits) == 0 {
		return nil
	}
	pairs := s.layers.pairs()
	batch, err := s.batchOf(pairs)
	if err != nil {
		return err
	}
	defer batch.Close()
	s.records.spill(pairs, s.reached)
	if err := s.commitBatch(batch); err != nil {
		return err
	}
	return s.renew(func() { s.layers = newLayers() })
}

// batchOf returns a batch of pairs, and of the index of the last entry. Each value is compared
// with its checksum once more: one that flipped in memory ends the node before it gets to disk,
// and the log brings it again.
func (s *stateDB) batchOf(pairs []pair) (*pebble.Batch, error) {
	batch := s.db.NewBatch()
	var buf, stored []byte
	for _, p := range pairs {
		buf = append(buf[:0], p.key...)
		err := p.check(buf)
		switch {
		case err != nil:
		case p.there:
			stored = sealValue(stored[:0], p.value, p.sum)
			err = batch.Set(buf, stored, nil)
		case !p.fresh:
			err = batch.Delete(buf, nil)
		}
		if err != nil {
			return nil, errors.Join(err, batch.Close())
		}
	}
	if err := setApplied(batch, s.reached); err != nil {
		return nil, errors.Join(err, batch.Close())
	}
	return batch, nil
}

// commitBatch commits a batch. pebble panics with the error where its log cannot be
// written, and cannot be used after that.
func (s *stateDB) commitBatch(batch *pebble.Batch) (err error) {
	defer func() {
		what := recover()
		if what == nil {
			return
		}
		cause, ok := what.(error)
		if _, bug := what.(runtime.Error); bug || !ok {
			panic(what)
		}
		s.fatal.broken.Store(true)
		err = cause
	}()
	return batch.Commit(pebble.NoSync)
}

// exchange makes database number, whole and synced with its name, the current
// one, and removes the one before. It waits for reads to end.
func (s *stateDB) exchange(number uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	// COMMIT POINT of a restore. Before it a restart finds the old state, and
	// restores again from the snapshot; after it the new.
	if err := replaceFile(s.fs, s.dir, currentFile, encodeCurrent(number)); err != nil {
		return err
	}
	if err := s.closeDB(); err != nil {
		return err
	}
	if err := s.use(number); err != nil {
		return err
	}
	return s.removeOthers()
}

// closeDB closes the database; mu is held for writing.
func (s *stateDB) closeDB() error {
	if s.db == nil {
		return nil
	}
	db := s.db
	s.db = nil
	s.wal.used.Store(false) // to close a log that has failed is an error like others here
	return errors.Join(s.renew(func() {}), db.Close())
}

// close closes the state; nothing is applied any more. What was gathered is written
// out, so that whoever opens the state of a node that has stopped sees all that it
// applied; where that fails, or the node cannot go on, the log has it.
func (s *stateDB) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.db != nil && s.fatal.err() == nil {
		err = s.spill()
	}
	if s.fatal.broken.Load() {
		return err // pebble must not be called again
	}
	err = errors.Join(err, s.closeDB())
	s.cache.Unref()
	return err
}

// pebbleLog makes pebble write to a slog.Logger. What pebble calls fatal (a
// failed write of its log or manifest) ends the node.
type pebbleLog struct {
	log   *slog.Logger
	fatal *fatal
}

// Infof drops what pebble says of its ordinary work.
func (l pebbleLog) Infof(string, ...any) {}

func (l pebbleLog) Errorf(format string, args ...any) {
	l.log.Error("state", "msg", fmt.Sprintf(format, args...))
}

func (l pebbleLog) Fatalf(format string, args ...any) {
	l.fatal.broken.Store(true)
	l.fatal.die(fmt.Errorf("state: "+format, args...))
}
