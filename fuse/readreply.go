package fuse

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync/atomic"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/morainefs/moraine/internal/limit"
)

// answer is what a read got: n bytes, in the buffer of the request, or lent by the client.
type answer struct {
	n       int
	lent    [][]byte
	release func() // nil: they are in the buffer
}

// drop gives up the answer.
func (a answer) drop() {
	if a.release != nil {
		a.release()
	}
}

// leastLent is the shortest read that is answered from the client's memory where it can be: below, a
// copy costs less than to look.
const leastLent = 64 << 10

// readAt reads from an open file. Fewer bytes than requested mean the end of the file.
func readAt(ctx context.Context, f *file, buf []byte, off int64) (answer, error) {
	if len(buf) >= leastLent {
		if lent, release := f.handle.Lend(ctx, off, int64(len(buf))); release != nil {
			a := answer{lent: lent, release: release}
			for _, p := range lent {
				a.n += len(p)
			}
			return a, nil
		}
	}
	n, err := f.handle.ReadAt(ctx, buf, off)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return answer{n: n}, err
}

// readReply is a read's answer of at least one byte. It is written to the kernel
// without a copy.
type readReply struct {
	answer
	reads   *limit.Semaphore
	granted int64 // bytes of reads
	done    atomic.Bool
	vector  [][]byte
	own     [1][]byte
}

// newReadReply returns the reply with an answer, which has granted bytes of reads.
func newReadReply(a answer, buf []byte, reads *limit.Semaphore, granted int64) *readReply {
	r := &readReply{answer: a, reads: reads, granted: granted, vector: a.lent}
	if a.release == nil {
		r.own[0] = buf[:a.n]
		r.vector = r.own[:]
	}
	return r
}

func (r *readReply) Size() int                         { return r.n }
func (r *readReply) Slices() ([][]byte, gofuse.Status) { return r.vector, gofuse.OK }
func (r *readReply) Bytes([]byte) ([]byte, gofuse.Status) {
	return slices.Concat(r.vector...), gofuse.OK
}

// Done frees the memory. The server calls it for each reply with bytes, also if the
// kernel did not accept them.
func (r *readReply) Done() {
	if r.done.Swap(true) {
		return
	}
	r.drop()
	r.reads.Release(r.granted)
}
