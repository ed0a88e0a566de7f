package ckpt

import (
	"context"
	"errors"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
)

// openFile is a part's file that reads share. Checkpoint.mu guards its fields, except that
// reader does not change once ready is closed.
type openFile struct {
	reader fileReader
	err    error
	ready  chan struct{}
	users  int
}

// maxOpenFiles bounds the unused files that a Checkpoint keeps open.
const maxOpenFiles = 256

// use returns the reader of file i. The caller calls done after the read.
func (k *Checkpoint) use(ctx context.Context, i int) (r fileReader, done func(), err error) {
	for {
		f := k.hold(ctx, i)
		err := wait(ctx, f.ready)
		if err == nil {
			err = f.err
		}
		if err == nil {
			return f.reader, func() { k.unuse(i, f) }, nil
		}
		k.unuse(i, f)
		// The caller that opened the file may have been canceled: that does not end this one.
		if ctx.Err() != nil || !errors.Is(err, moraine.Canceled) && !errors.Is(err, context.Canceled) {
			return nil, nil, err
		}
	}
}

// hold counts the caller as a user of file i, and opens it if it is not open.
func (k *Checkpoint) hold(ctx context.Context, i int) *openFile {
	k.mu.Lock()
	f, ok := k.open[i]
	if !ok {
		f = &openFile{ready: make(chan struct{})}
		k.open[i] = f
	}
	f.users++
	k.mu.Unlock()
	if !ok {
		f.reader, f.err = k.openByName(ctx, k.top.files[i])
		close(f.ready)
	}
	return f
}

// unuse forgets a file that could not be opened, and closes idle files if there are too many.
func (k *Checkpoint) unuse(i int, f *openFile) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f.users--
	select {
	case <-f.ready:
		if f.err != nil && k.open[i] == f {
			delete(k.open, i)
		}
	default:
	}
	if len(k.open) <= maxOpenFiles {
		return
	}
	for j, g := range k.open {
		if g.users == 0 && g.reader != nil {
			g.reader.Close()
			delete(k.open, j)
			return
		}
	}
}

func (k *Checkpoint) openByName(ctx context.Context, f FileInfo) (fileReader, error) {
	attr, err := lookup(ctx, k.c, k.Info.Dir, f.Name)
	if err != nil {
		return nil, err
	}
	r, err := k.c.open(ctx, moraine.InodeID(attr.GetInode()))
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

// readFile fills dst from file i, within the bound of concurrent reads.
func (k *Checkpoint) readFile(ctx context.Context, i int, dst []byte, off int64) error {
	select {
	case k.reads <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-k.reads }()
	r, done, err := k.use(ctx, i)
	if err != nil {
		return err
	}
	defer done()
	k.bytesRead.Add(int64(len(dst)))
	return r.ReadRange(ctx, dst, off)
}

func sumIs(p []byte, sum uint32) bool { return crc.Sum(p) == sum }
