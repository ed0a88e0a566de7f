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

// openIndex opens the index. If the old one is lost, corrupt or belongs to another
// device, it opens an empty one, which recover fills from the segments.
func (d *Device) openIndex() error {
	dir := path.Join(d.cfg.Dir, indexDir)
	marker := path.Join(d.cfg.Dir, rebuildFile)
	_, err := d.deps.FS.Stat(marker)
	if err == nil {
		err = &moraine.Error{Op: "disk.openIndex", Ref: marker, Kind: moraine.Corrupt,
			Err: errors.New("index was found corrupt during use")}
	} else if err = d.tryIndex(dir); err == nil {
		return nil
	}
	var errno syscall.Errno
	if errors.As(err, &errno) && !errors.Is(err, fs.ErrNotExist) {
		return err // the file system failed, not the index: a rebuild would not help
	}
	d.log.Warn("index rebuild started", "err", err)
	d.recovery.Rebuilt = true
	if err := d.deps.FS.RemoveAll(dir); err != nil {
		return err
	}
	if err := d.tryIndex(dir); err != nil {
		return err
	}
	if err := d.deps.FS.Remove(marker); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (d *Device) tryIndex(dir string) error {
	if err := d.deps.FS.MkdirAll(dir); err != nil {
		return err
	}
	db, err := d.openPebble(dir)
	if err != nil {
		return err
	}
	d.index = &index{db: db}
	if err = d.checkMeta(); err != nil {
		d.closeIndex()
		d.index = nil
	}
	return err
}

// openPebble opens pebble, unless the device fails first: pebble is then halted
// (indexFS).
func (d *Device) openPebble(dir string) (*pebble.DB, error) {
	type result struct {
		db  *pebble.DB
		err error
	}
	opened := make(chan result, 1)
	go func() {
		db, err := pebble.Open(dir, d.indexOptions())
		opened <- result{db, err}
	}()
	select {
	case r := <-opened:
		return r.db, r.err
	case <-d.failed:
		return nil, d.Err()
	}
}

// checkMeta verifies that the index belongs to this device.
func (d *Device) checkMeta() error {
	want := append([]byte{indexVersion}, d.identity.Device[:]...)
	v, closer, err := d.index.db.Get([]byte{tableMeta})
	if errors.Is(err, pebble.ErrNotFound) {
		return d.index.db.Set([]byte{tableMeta}, want, pebble.NoSync)
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

func (d *Device) indexOptions() *pebble.Options {
	o := &pebble.Options{
		FS:                    pebblevfs.New(indexFS{FS: d.deps.FS, d: d}),
		DisableWAL:            true,
		MemTableSize:          16 << 20,
		CacheSize:             d.cfg.IndexCacheBytes,
		FormatMajorVersion:    pebble.FormatNewest,
		Logger:                indexLogger{d: d},
		EventListener:         &pebble.EventListener{BackgroundError: d.indexBackgroundError},
		MaxOpenFiles:          500,
		L0CompactionThreshold: 4,
	}
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	return o
}

// indexError takes the device out of service for an error of the index. If the
// index is corrupt, it leaves a note that makes the next Open rebuild it.
func (d *Device) indexError(op string, err error) error {
	if pebble.IsCorruptionError(err) {
		if f, createErr := d.deps.FS.Open(path.Join(d.cfg.Dir, rebuildFile), vfs.Create); createErr == nil {
			_ = f.Close()
		}
	}
	return d.fail(op, fmt.Errorf("index: %w", err))
}

// indexBackgroundError handles failed flushes and compactions, which pebble reports
// while it holds its lock. Pebble retries them at once and for ever.
func (d *Device) indexBackgroundError(err error) {
	if !isNoSpace(err) {
		_ = d.indexError("disk.index", err)
	}
	<-d.deps.Clock.After(100 * time.Millisecond) // delay the retry
}

// indexLogger forwards pebble's log messages.
type indexLogger struct{ d *Device }

func (l indexLogger) Infof(string, ...any) {}

func (l indexLogger) Errorf(format string, args ...any) {
	l.d.log.Warn("index", "text", fmt.Sprintf(format, args...))
}

// Fatalf is called when pebble cannot continue and expects the process to end. One
// bad device must not end the service of the others. So this device goes out of
// service, and its index is no longer trusted.
func (l indexLogger) Fatalf(format string, args ...any) {
	_ = l.d.indexError("disk.index", fmt.Errorf("%w: "+format, append([]any{pebble.ErrCorruption}, args...)...))
}
