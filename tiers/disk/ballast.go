package disk

import (
	"errors"
	"io/fs"
	"log/slog"
	"path"
	"sync"

	"github.com/morainefs/moraine/internal/vfs"
)

// ballast is a file that only takes space. The device removes it when the file
// system is full, so that it can still write tombstones and the index. The device
// makes it again when space is free.
type ballast struct {
	cfg     *Config
	deps    *Deps
	log     *slog.Logger
	failure *failure

	mu   sync.Mutex // held across the I/O, which nothing else waits for
	kept bool
}

// keep makes the ballast if there is ample free space.
func (b *ballast) keep() error {
	size := b.cfg.BallastBytes / block * block
	if size <= 0 {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.kept {
		return nil
	}
	name := path.Join(b.cfg.Dir, ballastFile)
	info, err := b.deps.FS.Stat(name)
	switch {
	case err == nil && info.Size == size:
		b.kept = true
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if u, err := b.deps.FS.Usage(b.cfg.Dir); err != nil || u.Free < 4*uint64(size) || u.Free < u.Total/20 {
		return err
	}
	f, err := b.deps.FS.Open(name, vfs.Create|vfs.Truncate)
	if err != nil {
		return err
	}
	err = f.Allocate(0, size)
	if err = errors.Join(err, f.Close()); err == nil {
		b.kept = true
		return nil
	}
	if removeErr := b.deps.FS.Remove(name); removeErr != nil || !isNoSpace(err) {
		return errors.Join(err, removeErr)
	}
	return nil
}

// drop removes the ballast, and reports whether it existed.
func (b *ballast) drop() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.kept {
		return false
	}
	b.kept = false
	if err := b.deps.FS.Remove(path.Join(b.cfg.Dir, ballastFile)); err != nil {
		_ = b.failure.fail("disk.ballast", err)
		return false
	}
	b.log.Warn("ballast removed")
	return true
}
