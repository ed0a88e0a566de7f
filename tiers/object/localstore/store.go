// Package localstore keeps the objects of one bucket in a directory, durably. It
// answers a change when the bytes and the name are on the disk. Behind package
// localserver it is the object tier of a laptop, and may hold the only copy of
// files that were evicted to it.
//
// It uses package vfs, so that tests can cut the power at any moment. An object is
// one file below `objects`, named for a hash of its key. The parts of uploads are
// files of the same form below `uploads`. docs/formats/local-object.md describes
// the files.
//
// One path through it: Put (store.go) writes the bytes under a temporary name and
// syncs them (write.go). It renames the file over the old one, and syncs the
// directory (durable.go). Open removes what a power cut left under temporary names,
// and reads the records of all objects: the index is in memory.
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

// syncPoint names a place where the store makes a change durable; a test leaves one
// out.
type syncPoint int

const (
	syncLayout  syncPoint = iota // the directories of a new store
	syncBytes                    // the bytes of an object or part
	syncName                     // the name of an object
	syncRemoval                  // the removed name of an object
	syncUpload                   // the directory of a new upload
	syncPart                     // the name of a part, or of an upload's own record
	syncEnd                      // the removal of an upload
	syncPoints
)

const (
	objectsDir = "objects"
	uploadsDir = "uploads"
	damagedDir = "damaged"
	tempSuffix = ".new"
)

// Condition is what a change requires of its key.
type Condition struct {
	Free bool   // the key must be free
	ETag string // the object there must have it; empty: any
}

// Store is one bucket. All methods may be called concurrently. Errors are
// *moraine.Error: NotFound, Conflict (a condition is false), Corrupt (the bytes do
// not match the announced CRC), InvalidArgument, NoSpace, IOError.
type Store struct {
	fs   vfs.FS
	dir  string
	lock io.Closer
	now  func() time.Time
	skip syncPoint // set by tests; -1: none

	// changes serialises the changes of a key or upload, so that a condition and
	// the rename that follows are one step.
	changes sync.Mutex

	mu      sync.Mutex // guards the fields below
	index   map[string]*Record
	damaged map[string]error // by file: objects with an unreadable record
	// doubtful holds the keys whose change took place but whose sync failed. A
	// power loss may undo the change, so the store reports nothing about these
	// keys.
	doubtful map[string]error
	changing *change // the running change; nil: none
	next     uint64
	failure  error // of a sync: no state is certain until the next Open
}

// Options are for tests.
type Options struct {
	// Now is the wall clock. Default time.Now.
	Now func() time.Time
}

// Open opens the store in a directory, which it makes if it is missing. A
// damaged record affects only its own object. Head and Get return Corrupt, List
// omits it, and a put or Delete of its key moves the file to the directory
// damaged.
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
	for _, d := range []string{objectsDir, uploadsDir, damagedDir} {
		if err := s.fs.MkdirAll(path.Join(s.dir, d)); err != nil {
			return err
		}
	}
	if err := s.syncDir(syncLayout, s.dir); err != nil {
		return err
	}
	// The directories above may be new too: a process that died may have made them.
	for d := s.dir; d != path.Dir(d); {
		d = path.Dir(d)
		if err := s.syncDir(syncLayout, d); errors.Is(err, fs.ErrPermission) {
			s.failure = nil // the directory belongs to others, and existed before
		} else if err != nil {
			return err
		}
	}
	return nil
}

// recover reads the records of all objects, and removes what a power cut left
// unfinished. A process may have ended before it synced a name that recover finds.
// So recover makes the name durable before the store reports it.
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
			s.damaged[p] = err // the store serves the other objects
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
		// The record of an upload is made last and removed first.
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

// objectFile returns the file of a key.
func (s *Store) objectFile(key string) string {
	sum := sha256.Sum256([]byte(key))
	return path.Join(s.dir, objectsDir, hex.EncodeToString(sum[:]))
}

// Put makes an object from all bytes of r. want, unless nil, is the CRC32C that the
// bytes must have.
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
	return &moraine.Error{Op: "localstore.put", Ref: key, Kind: moraine.Corrupt, Err: fmt.Errorf("CRC32C is %08x, announced was %08x: upload again", got, want)}
}

// publish renames a written file to the name of its key, if the condition is true.
// The caller holds changes.
func (s *Store) publish(f *written, cond Condition) error {
	key := f.record.Key // a copy that the store owns
	if err := s.allows(key, cond); err != nil {
		return f.drop(s, err)
	}
	defer s.begin(key)()
	if err := s.moveAside(key); err != nil {
		return f.drop(s, err)
	}
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

// moveAside moves the file of a key whose record is damaged to a name below
// `damaged`. Its bytes may be intact, and a person may want them. The caller
// holds changes, and has marked the key as changing. If we stop after it, the
// key is free, as readers already saw it.
func (s *Store) moveAside(key string) error {
	file := s.objectFile(key)
	s.mu.Lock()
	damage := s.damaged[file]
	s.mu.Unlock()
	if damage == nil {
		return nil
	}
	aside := path.Join(s.dir, damagedDir, fmt.Sprintf("%s-%d", path.Base(file), s.now().UnixNano()))
	if err := s.fs.Rename(file, aside); err != nil {
		return s.failed("move aside", key, err)
	}
	s.mu.Lock()
	delete(s.damaged, file)
	s.mu.Unlock()
	return s.failed("move aside", key, s.broken(s.fs.SyncDir(path.Join(s.dir, damagedDir))))
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
		return &moraine.Error{Op: "localstore.put", Ref: key, Kind: moraine.Conflict, Err: fmt.Errorf("object at the key has ETag %s", have.ETag)}
	case cond.ETag != "" && have == nil:
		return &moraine.Error{Op: "localstore.put", Ref: key, Kind: moraine.NotFound}
	case cond.Free && s.damaged[s.objectFile(key)] != nil:
		return &moraine.Error{Op: "localstore.put", Ref: key, Kind: moraine.Conflict, Err: errors.New("object at the key is damaged")}
	}
	return nil
}

// Damaged returns the files of objects with damaged records and the reasons, in order.
func (s *Store) Damaged() []FileInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []FileInfo
	for _, file := range slices.Sorted(maps.Keys(s.damaged)) {
		out = append(out, FileInfo{Path: file, Damage: s.damaged[file]})
	}
	return out
}

// Head returns the record of an object. It returns Corrupt if the file is damaged,
// and IOError if a change of the key may not be durable.
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

// Get opens an object: the first Record.Size bytes of the File. The File does not
// change when the key does, and must be closed. IOError as with Head.
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

// Delete removes an object. A missing object is no error. If etag is not empty and
// the object has another one, the object stays and Delete returns Conflict.
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
		return &moraine.Error{Op: "localstore.delete", Ref: key, Kind: moraine.Conflict, Err: errors.New("object at the key has another ETag")}
	}
	defer s.begin(key)()
	if damaged != nil {
		if err := s.moveAside(key); err != nil {
			return err
		}
	} else if err := s.fs.Remove(s.objectFile(key)); err != nil {
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

// syncChange makes a change of a key durable. If that fails, the store reports
// nothing about the key from then on.
func (s *Store) syncChange(p syncPoint, key string) error {
	err := s.syncDir(p, path.Join(s.dir, objectsDir))
	if err != nil {
		s.mu.Lock()
		s.doubtful[strings.Clone(key)] = err
		s.mu.Unlock()
	}
	return err
}

// broken keeps the first error of a sync, and returns it from then on. The writes
// since the last sync may be lost, even if a later sync succeeds.
func (s *Store) broken(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure == nil && err != nil {
		s.failure = &moraine.Error{Op: "localstore.sync", Ref: s.dir, Kind: moraine.IOError,
			Err: fmt.Errorf("%w: the store accepts no change until it is restarted", err)}
	}
	return s.failure
}

// failed makes an error of the store from one of the file system.
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
