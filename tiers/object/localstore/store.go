// Package localstore keeps the objects of one bucket in a directory, durably: a change
// is answered when its bytes and its name are on the disk. It is the object tier of a
// laptop, behind package localserver, and holds what may be nowhere else once files were
// evicted to it.
//
// It is written over package vfs, so that tests cut the power at any instant. An object
// is one file below objects, named for a hash of its key; a new one is written under
// another name, synced, and renamed over the old one, and then the directory is synced.
// The parts of uploads are files of the same form below uploads. What a cut leaves under
// temporary names is removed by Open. Open reads the records of all objects: the index
// is in memory. The files are described in docs/formats/local-object.md.
package localstore

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
)

// syncPoint names a place where something is made durable; a test leaves one out.
type syncPoint int

const (
	syncLayout  syncPoint = iota // the directories of a new store
	syncBytes                    // the bytes of an object or part
	syncName                     // the name of an object
	syncRemoval                  // that the name of an object is gone
	syncUpload                   // the directory of a new upload
	syncPart                     // the name of a part, or of an upload's own record
	syncEnd                      // that an upload is gone
	syncPoints
)

const (
	objectsDir = "objects"
	uploadsDir = "uploads"
	tempSuffix = ".new"
)

// Condition is what a change expects of its key.
type Condition struct {
	Free bool   // nothing is there
	ETag string // the object there has it; empty: any
}

// Store is one bucket. All methods may be called concurrently. Errors are
// *moraine.Error: NotFound, Conflict (a condition does not hold), Corrupt (bytes do not
// match what was announced), InvalidArgument, NoSpace, IOError.
type Store struct {
	fs   vfs.FS
	dir  string
	lock io.Closer
	now  func() time.Time
	skip syncPoint // of tests; -1: none

	// changes orders what is done to one key or upload after the other, so that a
	// condition and the rename that follows are one step.
	changes sync.Mutex

	mu      sync.Mutex // guards what follows
	index   map[string]*Record
	damaged map[string]error // by file: those of objects whose record cannot be read
	// doubtful are keys whose change took place, and whose sync failed: a loss of power
	// may undo it, so that nothing is said of what is there.
	doubtful map[string]error
	changing *change // under way; nil: none
	next     uint64
	failure  error // of a sync: nothing may be assumed any more until Open
}

// Options are for tests.
type Options struct {
	// Now is the wall clock. Default time.Now.
	Now func() time.Time
}

// Open opens the store in a directory, which it makes where it is missing. A file whose
// record is damaged costs its object alone: Head and Get answer Corrupt, List leaves it
// out, a put or Delete of its key takes its place.
func Open(files vfs.FS, dir string, opts Options) (*Store, error) { return open(files, dir, opts, -1) }

func open(files vfs.FS, dir string, opts Options, skip syncPoint) (*Store, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	s := &Store{fs: files, dir: dir, now: opts.Now, skip: skip, index: map[string]*Record{},
		damaged: map[string]error{}, doubtful: map[string]error{}}
	if err := files.MkdirAll(dir); err != nil {
		return nil, s.failed("open", dir, err)
	}
	var err error
	if s.lock, err = files.Lock(path.Join(dir, "lock")); err != nil {
		return nil, s.failed("open", dir, err)
	}
	if err := errors.Join(s.layout(), s.recover()); err != nil {
		return nil, errors.Join(s.failed("open", dir, err), s.lock.Close())
	}
	return s, nil
}

// Close ends the store.
func (s *Store) Close() error { return s.lock.Close() }

// layout makes the directories of a store.
func (s *Store) layout() error {
	for _, d := range []string{objectsDir, uploadsDir} {
		if err := s.fs.MkdirAll(path.Join(s.dir, d)); err != nil {
			return err
		}
	}
	if err := s.syncDir(syncLayout, s.dir); err != nil {
		return err
	}
	// The directories above may be as new: a process that died may have made them.
	for d := s.dir; d != path.Dir(d); {
		d = path.Dir(d)
		if err := s.syncDir(syncLayout, d); errors.Is(err, fs.ErrPermission) {
			s.failure = nil // it is somebody else's, and was there before
		} else if err != nil {
			return err
		}
	}
	return nil
}

// recover reads the records of all objects, and removes what a cut left half done. What it
// finds may be the work of a process that ended before it synced the name: it is made
// durable before anything is said of it.
func (s *Store) recover() error {
	names, err := s.fs.List(path.Join(s.dir, objectsDir))
	if err != nil {
		return err
	}
	for _, name := range names {
		p := path.Join(s.dir, objectsDir, name)
		if strings.HasSuffix(name, tempSuffix) {
			if err := s.fs.Remove(p); err != nil {
				return err
			}
			continue
		}
		r, err := s.readRecord(p)
		switch {
		case errors.Is(err, moraine.Corrupt):
			s.damaged[p] = err // the other objects are served
		case err != nil:
			return fmt.Errorf("%s: %w", p, err)
		default:
			s.index[r.Key] = r
		}
	}
	if err := s.syncDir(syncName, path.Join(s.dir, objectsDir)); err != nil {
		return err
	}
	uploads, err := s.fs.List(path.Join(s.dir, uploadsDir))
	if err != nil {
		return err
	}
	for _, id := range uploads {
		// The record of an upload is the last of what makes one, and the first that goes.
		if _, err := s.fs.Stat(path.Join(s.uploadDir(id), uploadRecord)); errors.Is(err, fs.ErrNotExist) {
			err = s.fs.RemoveAll(s.uploadDir(id))
			if err != nil {
				return err
			}
		} else if err != nil {
			return err
		}
	}
	return s.syncDir(syncEnd, path.Join(s.dir, uploadsDir))
}

// readRecord reads the record of a file.
func (s *Store) readRecord(p string) (*Record, error) {
	f, err := s.fs.Open(p, vfs.Read)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	tail := make([]byte, min(size, maxRecord+footerSize))
	if _, err := f.ReadAt(tail, size-int64(len(tail))); err != nil && err != io.EOF {
		return nil, err
	}
	return DecodeTail(tail, size)
}

// objectFile is the file of a key.
func (s *Store) objectFile(key string) string {
	sum := sha256.Sum256([]byte(key))
	return path.Join(s.dir, objectsDir, hex.EncodeToString(sum[:]))
}

// Put makes an object of all that r gives. want, unless it is nil, is the CRC32C that
// the bytes must have.
func (s *Store) Put(key string, about Record, r io.Reader, want *uint32, cond Condition) (Record, error) {
	s.await(func(k string) bool { return k == key })
	if err := s.allows(key, cond); err != nil {
		return Record{}, err
	}
	f, err := s.write(path.Join(s.dir, objectsDir), key, about, r)
	if err != nil {
		return Record{}, err
	}
	if want != nil && f.record.CRC != *want {
		return Record{}, f.drop(s, badSum(key, f.record.CRC, *want))
	}
	s.changes.Lock()
	defer s.changes.Unlock()
	return f.record, s.publish(f, cond)
}

func badSum(key string, got, want uint32) error {
	return &moraine.Error{Op: "localstore.put", Ref: key, Kind: moraine.Corrupt, Err: fmt.Errorf("CRC32C %08x came, %08x was announced", got, want)}
}

// publish gives a written file the name of its key, if the condition holds. The caller
// holds changes.
func (s *Store) publish(f *written, cond Condition) error {
	key := f.record.Key // the store's own
	if err := s.allows(key, cond); err != nil {
		return f.drop(s, err)
	}
	defer s.begin(key)()
	if err := s.fs.Rename(f.path, s.objectFile(key)); err != nil {
		return f.drop(s, s.failed("put", key, err))
	}
	r := f.record
	s.mu.Lock()
	s.index[key] = &r
	delete(s.damaged, s.objectFile(key))
	s.mu.Unlock()
	return s.failed("put", key, s.syncChange(syncName, key))
}

// allows evaluates a condition.
func (s *Store) allows(key string, cond Condition) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	have := s.index[key]
	switch {
	case s.failure != nil:
		return s.failure
	case cond.Free && have != nil, cond.ETag != "" && have != nil && have.ETag != cond.ETag:
		return &moraine.Error{Op: "localstore.put", Ref: key, Kind: moraine.Conflict, Err: fmt.Errorf("the object there has ETag %s", have.ETag)}
	case cond.ETag != "" && have == nil:
		return &moraine.Error{Op: "localstore.put", Ref: key, Kind: moraine.NotFound}
	case cond.Free && s.damaged[s.objectFile(key)] != nil:
		return &moraine.Error{Op: "localstore.put", Ref: key, Kind: moraine.Conflict, Err: errors.New("the object there is damaged")}
	}
	return nil
}

// Head returns the record of an object; Corrupt where the file of one is damaged, IOError
// where a change of the key may not be durable.
func (s *Store) Head(key string) (Record, error) {
	s.lockDurable(func(k string) bool { return k == key })
	defer s.mu.Unlock()
	if err := s.doubtful[key]; err != nil {
		return Record{}, err
	}
	r := s.index[key]
	if r == nil {
		if err := s.damaged[s.objectFile(key)]; err != nil {
			return Record{}, &moraine.Error{Op: "localstore.head", Ref: key, Kind: moraine.Corrupt, Err: err}
		}
		return Record{}, &moraine.Error{Op: "localstore.head", Ref: key, Kind: moraine.NotFound}
	}
	return *r, nil
}

// Get opens an object; the File's first Record.Size bytes are its. It stays what it was
// when the key changes, and must be closed. IOError as with Head.
func (s *Store) Get(key string) (Record, vfs.File, error) {
	f, err := s.openDurable(key)
	if errors.Is(err, fs.ErrNotExist) {
		return Record{}, nil, &moraine.Error{Op: "localstore.get", Ref: key, Kind: moraine.NotFound}
	}
	if err != nil {
		return Record{}, nil, s.failed("get", key, err)
	}
	size, err := f.Size()
	if err == nil {
		tail := make([]byte, min(size, maxRecord+footerSize))
		if _, err = f.ReadAt(tail, size-int64(len(tail))); err == nil || err == io.EOF {
			var r *Record
			if r, err = DecodeTail(tail, size); err == nil {
				return *r, f, nil
			}
		}
	}
	return Record{}, nil, errors.Join(s.failed("get", key, err), f.Close())
}

// Delete removes an object. One that is not there is no error. etag, unless it is empty, is
// what the object must have; else it stays, and that is a Conflict.
func (s *Store) Delete(key, etag string) error {
	s.changes.Lock()
	defer s.changes.Unlock()
	s.mu.Lock()
	have, damaged, failure := s.index[key], s.damaged[s.objectFile(key)], s.failure
	s.mu.Unlock()
	switch {
	case failure != nil, have == nil && damaged == nil:
		return failure
	case etag != "" && (have == nil || have.ETag != etag):
		return &moraine.Error{Op: "localstore.delete", Ref: key, Kind: moraine.Conflict, Err: errors.New("the object there has another ETag")}
	}
	defer s.begin(key)()
	if err := s.fs.Remove(s.objectFile(key)); err != nil {
		return s.failed("delete", key, err)
	}
	s.mu.Lock()
	delete(s.index, key)
	delete(s.damaged, s.objectFile(key))
	s.mu.Unlock()
	return s.failed("delete", key, s.syncChange(syncRemoval, key))
}

// List returns the records of all objects whose keys begin with prefix, in order.
func (s *Store) List(prefix string) []Record {
	s.lockDurable(func(k string) bool { return strings.HasPrefix(k, prefix) })
	defer s.mu.Unlock()
	var out []Record
	for _, key := range slices.Sorted(maps.Keys(s.index)) {
		if strings.HasPrefix(key, prefix) && s.doubtful[key] == nil {
			out = append(out, *s.index[key])
		}
	}
	return out
}

// syncDir makes the names in a directory durable.
func (s *Store) syncDir(p syncPoint, dir string) error {
	if s.skip == p {
		return nil
	}
	return s.broken(s.fs.SyncDir(dir))
}

// syncChange makes a change of a key durable. Where that fails, nothing is said of the key
// any more.
func (s *Store) syncChange(p syncPoint, key string) error {
	err := s.syncDir(p, path.Join(s.dir, objectsDir))
	if err != nil {
		s.mu.Lock()
		s.doubtful[strings.Clone(key)] = err
		s.mu.Unlock()
	}
	return err
}

// broken keeps the first error of a sync, and returns it from then on: what was written
// since the last one may be lost, whatever a later sync says.
func (s *Store) broken(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure == nil && err != nil {
		s.failure = &moraine.Error{Op: "localstore.sync", Ref: s.dir, Kind: moraine.IOError,
			Err: fmt.Errorf("%w: nothing is taken any more until the store is started again", err)}
	}
	return s.failure
}

// failed makes an error of the store of one of the file system.
func (s *Store) failed(op, ref string, err error) error {
	var own *moraine.Error
	switch {
	case err == nil || errors.As(err, &own):
		return err
	case isFull(err):
		return &moraine.Error{Op: "localstore." + op, Ref: ref, Kind: moraine.NoSpace, Err: err}
	}
	return &moraine.Error{Op: "localstore." + op, Ref: ref, Kind: moraine.IOError, Err: err}
}
