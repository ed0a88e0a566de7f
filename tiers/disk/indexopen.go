package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/internal/vfs/pebblevfs"
)

// open opens the index. If the old one is lost, corrupt or belongs to another
// device, it opens an empty one, which recover fills from the segments.
func (x *index) open() error {
	dir := path.Join(x.cfg.Dir, indexDir)
	marker := path.Join(x.cfg.Dir, rebuildFile)
	_, err := x.deps.FS.Stat(marker)
	if err == nil {
		err = &moraine.Error{Op: "disk.openIndex", Ref: marker, Kind: moraine.Corrupt,
			Err: errors.New("index was found corrupt during use")}
	} else if err = x.try(dir); err == nil {
		return nil
	}
	var errno syscall.Errno
	if errors.As(err, &errno) && !errors.Is(err, fs.ErrNotExist) {
		return err // the file system failed, not the index: a rebuild would not help
	}
	x.log.Warn("index rebuild started", "err", err)
	x.rebuilt = true
	if err := x.deps.FS.RemoveAll(dir); err != nil {
		return err
	}
	if err := x.try(dir); err != nil {
		return err
	}
	if err := x.deps.FS.Remove(marker); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (x *index) try(dir string) error {
	if err := x.deps.FS.MkdirAll(dir); err != nil {
		return err
	}
	db, err := x.openPebble(dir)
	if err != nil {
		return err
	}
	x.db = db
	if err = x.checkMeta(); err != nil {
		x.close()
		x.db = nil
	}
	return err
}

// openPebble opens pebble, unless the device fails first: pebble is then halted
// (indexFS).
func (x *index) openPebble(dir string) (*pebble.DB, error) {
	type result struct {
		db  *pebble.DB
		err error
	}
	opened := make(chan result, 1)
	go func() {
		db, err := pebble.Open(dir, x.options())
		opened <- result{db, err}
	}()
	select {
	case r := <-opened:
		return r.db, r.err
	case <-x.failure.failed:
		return nil, x.failure.err()
	}
}

// checkMeta verifies that the index belongs to this device.
func (x *index) checkMeta() error {
	want := append([]byte{indexVersion}, x.identity.Device[:]...)
	v, closer, err := x.db.Get([]byte{tableMeta})
	if errors.Is(err, pebble.ErrNotFound) {
		return x.db.Set([]byte{tableMeta}, want, pebble.NoSync)
	}
	if err != nil {
		return err
	}
	defer closer.Close()
	if string(v) != string(want) {
		return fmt.Errorf("%w: index belongs to device %x", pebble.ErrCorruption, v)
	}
	return nil
}

func (x *index) options() *pebble.Options {
	o := &pebble.Options{
		FS:                    pebblevfs.New(indexFS{FS: x.deps.FS, index: x}),
		DisableWAL:            true,
		MemTableSize:          16 << 20,
		CacheSize:             x.cfg.IndexCacheBytes,
		FormatMajorVersion:    pebble.FormatNewest,
		Logger:                indexLogger{index: x},
		EventListener:         &pebble.EventListener{BackgroundError: x.backgroundError},
		MaxOpenFiles:          500,
		L0CompactionThreshold: 4,
	}
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	return o
}

// fail takes the device out of service for an error of the index. If the
// index is corrupt, it leaves a note that makes the next Open rebuild it.
func (x *index) fail(op string, err error) error {
	if pebble.IsCorruptionError(err) {
		if f, createErr := x.deps.FS.Open(path.Join(x.cfg.Dir, rebuildFile), vfs.Create); createErr == nil {
			_ = f.Close()
		}
	}
	return x.failure.fail(op, fmt.Errorf("index: %w", err))
}

// backgroundError handles failed flushes and compactions, which pebble reports
// while it holds its lock. Pebble retries them at once and for ever.
func (x *index) backgroundError(err error) {
	if !isNoSpace(err) {
		_ = x.fail("disk.index", err)
	}
	<-x.deps.Clock.After(100 * time.Millisecond) // delay the retry
}

// close ends pebble's work, unless the device has failed or fails meanwhile:
// pebble is then halted (indexFS). Entries that are not flushed are lost, and the
// next scan finds them again.
func (x *index) close() {
	if x.db == nil || x.failure.err() != nil {
		return
	}
	done := make(chan struct{})
	go func() {
		_ = x.db.Close() // an index that does not close cleanly is rebuilt by a scan
		close(done)
	}()
	select {
	case <-done:
	case <-x.failure.failed:
	}
}

// closeFlush limits how long Close waits for the flush of the index. The next Open
// scans what was not flushed.
const closeFlush = 10 * time.Second

// flush flushes the index and waits for it, at most for closeFlush. It stops
// waiting when the device fails, since pebble would then wait for ever.
func (x *index) flush() {
	flushed, err := x.db.AsyncFlush()
	if err != nil {
		return
	}
	select {
	case <-flushed:
	case <-x.failure.failed:
	case <-x.deps.Clock.After(closeFlush):
	}
}

// indexLogger forwards pebble's log messages.
type indexLogger struct{ index *index }

func (l indexLogger) Infof(string, ...any) {}

func (l indexLogger) Errorf(format string, args ...any) {
	l.index.log.Warn("index", "text", fmt.Sprintf(format, args...))
}

// Fatalf is called when pebble cannot continue and expects the process to end. One
// bad device must not end the service of the others. So this device goes out of
// service, and its index is no longer trusted.
func (l indexLogger) Fatalf(format string, args ...any) {
	_ = l.index.fail("disk.index", fmt.Errorf("%w: "+format, append([]any{pebble.ErrCorruption}, args...)...))
}
