package ckpt

import (
	"context"

	"github.com/morainefs/moraine"
)

const (
	// directRun is the length from which on a range is read by itself, straight into the caller's
	// buffer, in reads of at most readPiece.
	directRun = 256 << 10
	readPiece = 32 << 20
	// windowBytes bounds one read of several shorter ranges, and maxGap the bytes between two.
	windowBytes = 4 << 20
	maxGap      = 64 << 10
)

// window is one read: of one range, or of several near each other in a file.
type window struct {
	targets []target // in order of file offset
	end     int64    // of the targets, in the file
	useful  int64    // bytes of the targets
}

// takes reports whether the read may also cover t, whose offset is not before those of the
// others. A gap shorter than a block is free: servers read and verify whole blocks. Of larger gaps
// the read takes at most overRead of what it wants.
func (w *window) takes(t target, overRead float64) bool {
	if len(w.targets) == 0 {
		return true
	}
	first, gap := w.targets[0].file, t.file-w.end
	if t.end()-first > windowBytes || gap > maxGap {
		return false
	}
	waste := w.end - first - w.useful + max(gap, 0)
	return gap < moraine.BlockSize || float64(waste) <= overRead*float64(w.useful+int64(len(t.to)))
}

func (w *window) add(t target) {
	w.targets = append(w.targets, t)
	w.end = max(w.end, t.end())
	w.useful += int64(len(t.to))
}

// length returns how many bytes of the file the read covers.
func (w *window) length() int64 { return w.end - w.targets[0].file }

// readWindow makes the read with read, which fills p from an offset of the file on. A read of
// several ranges goes through memory of the checkpoint's budget.
func (k *Checkpoint) readWindow(ctx context.Context, w window, read func(p []byte, off int64) error) error {
	first := w.targets[0]
	if len(w.targets) == 1 {
		return read(first.to, first.file)
	}
	n := w.length()
	if err := k.memory.Acquire(ctx, n); err != nil {
		return err
	}
	defer k.memory.Release(n)
	buf := make([]byte, n)
	if err := read(buf, first.file); err != nil {
		return err
	}
	for _, t := range w.targets {
		copy(t.to, buf[t.file-first.file:])
	}
	return nil
}
