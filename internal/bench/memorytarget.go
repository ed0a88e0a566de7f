package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"golang.org/x/sync/errgroup"
)

// A memoryTarget has a memory tier. source is the repeated contents of a file.
type memoryTarget interface {
	// WriteMemory is Write that returns once the file is at level memory.
	WriteMemory(ctx context.Context, name string, total int64, source []byte) error
	// ReadRandom reads blocks of w.Block bytes at random, w.InFlight at once, for
	// w.Seconds, and returns how many.
	ReadRandom(ctx context.Context, w Work, source []byte) (int64, error)
	// Verify reads a whole file and compares it.
	Verify(ctx context.Context, name string, total int64, source []byte) error
}

// inMemory does the works that only a memoryTarget supports.
func inMemory(ctx context.Context, t Target, w Work, source []byte) (Result, error) {
	m, ok := t.(memoryTarget)
	if !ok {
		return Result{}, fmt.Errorf("bench: the target has no memory tier for %s", w.Op)
	}
	switch w.Op {
	case OpWriteMemory:
		return Result{Bytes: w.Bytes, Ops: 1}, m.WriteMemory(ctx, w.Path, w.Bytes, source)
	case OpRandom:
		ops, err := m.ReadRandom(ctx, w, source)
		return Result{Bytes: ops * int64(w.Block), Ops: ops}, err
	default:
		return Result{Bytes: w.Bytes, Ops: 1}, m.Verify(ctx, w.Path, w.Bytes, source)
	}
}

// WriteMemory implements memoryTarget.
func (t *clusterTarget) WriteMemory(ctx context.Context, name string, total int64, source []byte) error {
	return t.writeAt(ctx, name, total, source, moraine.Memory)
}

// compareEach is how many random reads there are for each compared one: comparing
// all would be a good part of the work.
const compareEach = 64

// ReadRandom implements memoryTarget.
func (t *clusterTarget) ReadRandom(ctx context.Context, w Work, source []byte) (int64, error) {
	r, err := t.c.OpenFile(ctx, w.Path)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	blocks := r.Size() / int64(w.Block)
	if blocks == 0 || r.Size() != w.Bytes {
		return 0, fmt.Errorf("bench: %s has %d bytes, not %d", w.Path, r.Size(), w.Bytes)
	}
	var ops atomic.Int64
	end := time.Now().Add(time.Duration(w.Seconds * float64(time.Second)))
	g, ctx := errgroup.WithContext(ctx)
	for i := range w.InFlight {
		g.Go(func() error {
			rng := rand.New(rand.NewPCG(2, uint64(i)))
			buf := make([]byte, w.Block)
			for n := 0; time.Now().Before(end); n++ {
				off := rng.Int64N(blocks) * int64(w.Block)
				if err := r.ReadRange(ctx, buf, off); err != nil {
					return err
				}
				if n%compareEach == 0 {
					if err := sameAs(source, buf, off); err != nil {
						return fmt.Errorf("%s: %w", w.Path, err)
					}
				}
				ops.Add(1)
			}
			return nil
		})
	}
	err = g.Wait()
	return ops.Load(), err
}

// Verify implements memoryTarget.
func (t *clusterTarget) Verify(ctx context.Context, name string, total int64, source []byte) error {
	r, err := t.c.OpenFile(ctx, name)
	if err != nil {
		return err
	}
	defer r.Close()
	if r.Size() != total {
		return fmt.Errorf("bench: %s has %d bytes, not %d", name, r.Size(), total)
	}
	buf := make([]byte, readPiece)
	for off := int64(0); off < total; off += readPiece {
		p := buf[:min(readPiece, total-off)]
		if _, err := r.ReadAt(ctx, p, off); err != nil {
			return err
		}
		if err := sameAs(source, p, off); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// sameAs compares bytes at an offset of a file with the source that it repeats.
func sameAs(source, p []byte, off int64) error {
	for len(p) > 0 {
		want := source[off%int64(len(source)):]
		n := min(len(want), len(p))
		if !bytes.Equal(want[:n], p[:n]) {
			return fmt.Errorf("bench: bytes at %d differ from the written ones", off)
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// untilNVMe waits, as long as ctx lasts, until a file is durable.
func untilNVMe(ctx context.Context, c *client.Client, name string) error {
	a, err := c.Stat(ctx, name)
	if err != nil {
		return err
	}
	for {
		// One call waits as long as a command would.
		err := c.Inodes().WaitNVMe(ctx, a.Inode())
		if ctx.Err() != nil || !errors.Is(err, moraine.Timeout) {
			return err
		}
	}
}
