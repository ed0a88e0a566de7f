package ckpt

import (
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
)

const (
	// streamPiece bounds one read of a stream, and streamAhead the reads that wait for the writer.
	streamPiece = 8 << 20
	streamAhead = 4
)

// WriteTensors writes whole tensors to w, one after the other, each in row-major order, whatever
// ranks saved them. It has at most six pieces of 8 MiB in memory, however large the tensors are.
// Bytes that are corrupt or lost at one level come from the next; see BadRanges.
func (k *Checkpoint) WriteTensors(ctx context.Context, w io.Writer, names ...string) error {
	return stream(ctx, w, func(yield func(piece) bool) error {
		for _, name := range names {
			t, err := k.Tensor(ctx, name)
			if err != nil {
				return err
			}
			err = eachPiece(t.Shape, int64(t.DType.Size()), streamPiece, func(offset, shape []int64) (bool, error) {
				return yield(piece{tensorSize(t.DType, shape), func(ctx context.Context, p []byte) error {
					return k.readSlice(ctx, t, SliceRequest{Name: name, Offset: offset, Shape: shape, Dst: p})
				}}), nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// WriteFile writes the file Files()[i] to w, as the step's directory has it, and fails with Corrupt
// if the bytes do not have the file's CRC. Of an adopted file there is none. It has at most six
// pieces of 8 MiB in memory.
func (k *Checkpoint) WriteFile(ctx context.Context, w io.Writer, i int) error {
	f := &k.top.files[i]
	sum := uint32(0)
	err := stream(ctx, writerFunc(func(p []byte) (int, error) {
		sum = crc.Update(sum, p)
		return w.Write(p)
	}), func(yield func(piece) bool) error {
		for off := int64(0); off < f.Size; off += streamPiece {
			more := yield(piece{min(streamPiece, f.Size-off), func(ctx context.Context, p []byte) error { return k.files.readIntact(ctx, i, p, off) }})
			if !more {
				return nil
			}
		}
		return nil
	})
	if err == nil && sum != f.CRC && !f.Adopted() {
		err = &moraine.Error{Op: "ckpt.WriteFile", Ref: f.Name, Kind: moraine.Corrupt, Err: fmt.Errorf("CRC32C mismatch: got %08x, want %08x", sum, f.CRC)}
	}
	return err
}

type writerFunc func(p []byte) (int, error)

// Write calls f.
func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// piece is a part of a stream: its length, and how to read it.
type piece struct {
	bytes int64
	read  func(ctx context.Context, p []byte) error
}

// arrival is a piece that is being read, or was read.
type arrival struct {
	buf  []byte
	err  error
	done chan struct{}
}

// stream writes the pieces that each yields to w, in order. It reads several ahead of the writer.
func stream(ctx context.Context, w io.Writer, each func(yield func(piece) bool) error) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	arrivals := make(chan *arrival, streamAhead)
	ended := make(chan error, 1)
	var used buffers
	go func() {
		defer close(arrivals)
		ended <- each(func(p piece) bool {
			a := &arrival{done: make(chan struct{})}
			select {
			case arrivals <- a:
			case <-ctx.Done():
				return false
			}
			go func() {
				defer close(a.done)
				a.buf = used.get(p.bytes)
				a.err = p.read(ctx, a.buf)
			}()
			return true
		})
	}()
	for a := range arrivals {
		<-a.done // its read ends with ctx
		if err == nil {
			err = a.err
		}
		if err == nil {
			_, err = w.Write(a.buf)
		}
		used.put(a.buf)
		if err != nil {
			cancel()
		}
	}
	if each := <-ended; err == nil {
		err = each
	}
	if err == nil {
		err = ctx.Err()
	}
	return err
}

// buffers are buffers of pieces that were written, to be used again. The zero value is ready.
type buffers struct {
	mu   sync.Mutex
	list [][]byte
}

// get returns a buffer of n bytes. One that is too short for them is dropped, so that there are never
// more than pieces in flight.
func (b *buffers) get(n int64) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	if last := len(b.list) - 1; last >= 0 {
		buf := b.list[last]
		b.list = b.list[:last]
		if int64(cap(buf)) >= n {
			return buf[:n]
		}
	}
	return make([]byte, n)
}

func (b *buffers) put(buf []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.list = append(b.list, buf)
}
