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

// appliedKey has {version 1, applied index (uint64, little-endian)}. It is written in the same
// batch as the entries that it counts.
var appliedKey = []byte{0xff, 0xff, 'a'}

// stateDB is the state: a pebble database in the directory that CURRENT names.
//
// Commits are collected in layers above the database and spilled into it from time to time. Reads
// use views of both, which all reads between two commits share, so that a read needs no snapshot of
// its own. Lock order: mu, then viewMu.
type stateDB struct {
	fs    vfs.FS
	dir   string // has CURRENT and the databases
	cfg   *Config
	log   *slog.Logger
	fatal *fatal
	cache *pebble.Cache
	tune  func(*pebble.Options) // nil except for a load

	// mu is held for reading while db is used, and for writing to exchange it.
	mu      sync.RWMutex
	db      *pebble.DB
	wal     *stateLog       // of db
	records *records        // of db
	ends    *ends           // of db; used by the apply loop
	writes  map[string]cell // memory for the next batch; used by the apply loop
	number  uint64          // db is in dir/db-<number>

	// viewMu is held to change the following fields, and by readers to read them. The apply loop,
	// which alone changes layers and reached, reads them without it.
	viewMu  sync.Mutex
	layers  *layers     // above db
	reached uint64      // index of the last committed entry
	view    *sharedView // nil after each commit, until a read
}

// openState opens the current database, or makes the first one. It removes leftovers of interrupted
// restores.
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
		// CURRENT is durable before the first entry is applied, so that a first database without it
		// is the leftover of an interrupted start.
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
	body, err := unseal(currentMagic, currentVersion, p)
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

// use opens, or makes, the database with a number and makes it the one in use.
//
// pebble.Open first syncs s.dir. After that the database's name is durable, and so is a CURRENT
// that a killed process renamed and did not sync. Other databases must therefore not be removed
// earlier.
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
				s.log.Error("background work of the state database failed; it will be retried", "err", err)
			},
			WALCreated: wal.created,
		},
	}
	// pebble uses no filter in the last level, which has nine tenths of the keys
	for i := range len(opts.Levels) - 1 {
		opts.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	if s.tune != nil {
		s.tune(opts)
	}
	return opts
}

// applied returns the index of the last entry in r; 0 if there is none.
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

// setApplied adds the index of the last entry to batch.
func setApplied(batch *pebble.Batch, index uint64) error {
	value := encodeApplied(index)
	return batch.Set(appliedKey, sealValue(nil, value, valueSum(appliedKey, value)), nil)
}

// commit makes kv's writes visible as the state after entry index. They become durable with a flush
// after they were spilled; until then the log has them.
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

// spill writes the commits since the last spill to the database, in one batch with the index of the
// last entry. Only the goroutine that applies may call it.
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

// batchOf returns a batch of pairs with the index of the last entry. It
// compares each value with its checksum again. A bit that flipped in memory
// ends the node before it reaches the disk, and the log delivers the value
// again.
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

// commitBatch commits a batch. If pebble cannot write its log it panics with the error, and cannot
// be used afterwards.
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

// exchange makes the database with a number, which is complete and durable with its name, the
// current one, and removes the previous one. It waits for reads to end.
func (s *stateDB) exchange(number uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	// COMMIT POINT of a restore. Before it a restart finds the old state and restores again from
	// the snapshot; after it, the new one.
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

// closeDB closes the database. The caller holds mu for writing.
func (s *stateDB) closeDB() error {
	if s.db == nil {
		return nil
	}
	db := s.db
	s.db = nil
	s.wal.used.Store(false) // here an error of closing a failed log is an ordinary error
	return errors.Join(s.renew(func() {}), db.Close())
}

// close closes the state; nothing is applied afterwards. It writes out what was collected, so that
// a reader of a stopped node's state sees everything applied. If that fails, or the node cannot
// continue, the log has it.
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

// pebbleLog makes pebble log to a slog.Logger. What pebble calls fatal (a failed write of its log
// or manifest) ends the node.
type pebbleLog struct {
	log   *slog.Logger
	fatal *fatal
}

// Infof discards pebble's messages about ordinary work.
func (l pebbleLog) Infof(string, ...any) {}

func (l pebbleLog) Errorf(format string, args ...any) {
	l.log.Error("the database of the state reports an error", "msg", fmt.Sprintf(format, args...))
}

func (l pebbleLog) Fatalf(format string, args ...any) {
	l.fatal.broken.Store(true)
	l.fatal.die(fmt.Errorf("state: "+format, args...))
}
