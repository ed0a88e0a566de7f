package ckpt

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/readonce"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/crc"
)

// stepFiles are the files of a committed step in the cluster, and what reads found out about
// them. Methods may be called concurrently.
type stepFiles struct {
	c     cluster
	clock clock.Clock
	dir   moraine.InodeID
	list  []FileInfo
	from  moraine.Level // as ReadOptions.From
	slots chan struct{} // bounds the concurrent reads

	shared *readonce.Reads // nil: none
	// bytesRead came from the cluster; another reader of shared had bytesShared.
	bytesRead, bytesShared atomic.Int64

	mu   sync.Mutex
	open map[int]*openFile // by index in list
	bad  []BadRange
}

// openFile is a part's file that reads share. stepFiles.mu guards its fields, except that
// reader does not change once ready is closed.
type openFile struct {
	reader fileReader
	err    error
	ready  chan struct{}
	users  int
}

// maxOpenFiles bounds the unused files that a Checkpoint keeps open.
const maxOpenFiles = 256

func newStepFiles(c cluster, clock clock.Clock, dir moraine.InodeID, list []FileInfo, from moraine.Level) *stepFiles {
	return &stepFiles{c: c, clock: clock, dir: dir, list: list, from: from, slots: make(chan struct{}, readsAtOnce), open: make(map[int]*openFile)}
}

// use returns the reader of file i. The caller calls done after the read.
func (s *stepFiles) use(ctx context.Context, i int) (r fileReader, done func(), err error) {
	for {
		f := s.hold(ctx, i)
		err := wait(ctx, f.ready)
		if err == nil {
			err = f.err
		}
		if err == nil {
			return f.reader, func() { s.unuse(i, f) }, nil
		}
		s.unuse(i, f)
		// The caller that opened the file may have been canceled: that does not end this one.
		if ctx.Err() != nil || !errors.Is(err, moraine.Canceled) && !errors.Is(err, context.Canceled) {
			return nil, nil, err
		}
	}
}

// hold counts the caller as a user of file i, and opens it if it is not open.
func (s *stepFiles) hold(ctx context.Context, i int) *openFile {
	s.mu.Lock()
	f, ok := s.open[i]
	if !ok {
		f = &openFile{ready: make(chan struct{})}
		s.open[i] = f
	}
	f.users++
	s.mu.Unlock()
	if !ok {
		f.reader, f.err = s.openByName(ctx, s.list[i])
		close(f.ready)
	}
	return f
}

// unuse forgets a file that could not be opened, and closes idle files if there are too many.
func (s *stepFiles) unuse(i int, f *openFile) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.users--
	select {
	case <-f.ready:
		if f.err != nil && s.open[i] == f {
			delete(s.open, i)
		}
	default:
	}
	if len(s.open) <= maxOpenFiles {
		return
	}
	for j, g := range s.open {
		if g.users == 0 && g.reader != nil {
			g.reader.Close()
			delete(s.open, j)
			return
		}
	}
}

func (s *stepFiles) openByName(ctx context.Context, f FileInfo) (fileReader, error) {
	attr, err := lookup(ctx, s.c, s.dir, f.Name)
	if err != nil {
		return nil, err
	}
	r, err := openFrom(ctx, s.c, moraine.InodeID(attr.GetInode()), s.from)
	if err != nil {
		return nil, err
	}
	if r.Size() != f.Size {
		r.Close()
		return nil, &moraine.Error{Op: "ckpt.open", Ref: f.Name, Kind: moraine.Corrupt,
			Err: errorf("the file has %d bytes, the index says %d", r.Size(), f.Size)}
	}
	return r, nil
}

// openFrom opens a file whose bytes come from a level: object, or any.
func openFrom(ctx context.Context, c cluster, inode moraine.InodeID, from moraine.Level) (fileReader, error) {
	if from == moraine.Object {
		return c.openObject(ctx, inode)
	}
	return c.open(ctx, inode)
}

// read fills dst from file i, within the bound of concurrent reads.
func (s *stepFiles) read(ctx context.Context, i int, dst []byte, off int64) error {
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.slots }()
	crc.SumsOf(ctx).Forget(dst)
	if s.shared == nil || int64(len(dst)) > s.shared.Limit {
		return s.fetch(ctx, i, dst, off)
	}
	own, err := s.shared.Read(ctx, readonce.Key{Dir: s.dir, File: i, Offset: off, Bytes: len(dst)}, dst, func(p []byte) error { return s.fetch(ctx, i, p, off) })
	if err == nil && !own {
		s.bytesShared.Add(int64(len(dst)))
	}
	return err
}

// ShareReads lets k read ranges from the cluster together with others that share s. It is for agents:
// ranks of other processes cannot. Do not call it during a read.
func (k *Checkpoint) ShareReads(s *readonce.Reads) { k.files.shared, k.prefer = s, s.Prefer }

// fetch fills dst from file i in the cluster.
func (s *stepFiles) fetch(ctx context.Context, i int, dst []byte, off int64) error {
	r, done, err := s.use(ctx, i)
	if err != nil {
		return err
	}
	defer done()
	s.bytesRead.Add(int64(len(dst)))
	return r.ReadRange(ctx, dst, off)
}

const (
	// objectPause is the first pause before a read of the object; it doubles up to objectPauseMax.
	// objectTries bounds the reads: about 30 s.
	objectPause    = 250 * time.Millisecond
	objectPauseMax = 2 * time.Second
	objectTries    = 18
)

// readIntact is read. If the cluster has lost or damaged the bytes, and an object has the file,
// it waits until the leader has evicted the damaged stripes, and reads the object. It reports the levels
// whose copies are bad.
func (s *stepFiles) readIntact(ctx context.Context, i int, dst []byte, off int64) error {
	err := s.read(ctx, i, dst, off)
	var reported moraine.Level
	pause := objectPause
	for try := 0; isDamage(err); try++ {
		level := s.levelOf(ctx, i, off, int64(len(dst)))
		if try == objectTries || level == moraine.Object && level == reported {
			return err
		}
		if level != reported && (try == 0 || level == moraine.Object) {
			s.report(BadRange{File: s.list[i].Name, Offset: off, Bytes: int64(len(dst)), Level: level, Err: err})
			reported = level
		}
		if level != moraine.Object { // an object is read again at once: the file may have been evicted during the read
			if attr, lerr := lookup(ctx, s.c, s.dir, s.list[i].Name); lerr != nil || !attr.GetClean() {
				return err // no object has it
			}
			select {
			case <-s.clock.After(pause):
			case <-ctx.Done():
				return ctx.Err()
			}
			pause = min(2*pause, objectPauseMax)
		}
		err = s.read(ctx, i, dst, off)
	}
	return err
}

// levelOf returns the level from which n bytes of file i are read in the cluster.
func (s *stepFiles) levelOf(ctx context.Context, i int, off, n int64) moraine.Level {
	if s.from == moraine.Object {
		return moraine.Object
	}
	if r, done, err := s.use(ctx, i); err == nil {
		in, err := r.InObject(ctx, off, n)
		done()
		if in && err == nil {
			return moraine.Object
		}
	}
	if attr, err := lookup(ctx, s.c, s.dir, s.list[i].Name); err == nil && moraine.Level(attr.GetLevel()) == moraine.Memory {
		return moraine.Memory
	}
	return moraine.NVMe
}

// report adds a bad range to the list, while it has room and unless it is there.
func (s *stepFiles) report(b BadRange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := slices.ContainsFunc(s.bad, func(k BadRange) bool {
		return k.File == b.File && k.Offset == b.Offset && k.Bytes == b.Bytes && k.Level == b.Level
	})
	if !known && len(s.bad) < maxBadRanges {
		s.bad = append(s.bad, b)
	}
}

func (s *stepFiles) badRanges() []BadRange {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.bad)
}

// close closes all files. Reads must have ended.
func (s *stepFiles) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, f := range s.open {
		if f.reader != nil {
			f.reader.Close()
		}
		delete(s.open, i)
	}
}

func sumIs(p []byte, sum uint32) bool { return crc.Sum(p) == sum }
