package mover

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/tiers/object"
)

// sentParts are the parts of an upload that the store has accepted, and the checksums of the
// sent bytes.
type sentParts struct {
	list []object.Part
	sums []uint32 // of each piece
	crc  uint32   // of the whole
}

// partBytes returns the length of the parts of a file: whole pieces, and as few as keep the
// file within MaxParts parts.
func partBytes(size int64) int64 {
	pieces := max(1, (size+pieceBytes-1)/pieceBytes)
	return (pieces + object.MaxParts - 1) / object.MaxParts * pieceBytes
}

// uploadPatience bounds how long a part waits for memory. Parts of other files release it when
// the bucket has accepted or refused them.
const uploadPatience = 10 * time.Minute

// send uploads a file in parts, as many at a time as the memory allows. A file of more than 160
// GB has parts of several pieces. Past 1.2 TB one part exceeds the default bound, and is sent
// alone.
func (f *flushing) send(ctx context.Context, content Content, id string) (*sentParts, error) {
	size := content.Size()
	length := partBytes(size)
	count := int(max(1, (size+length-1)/length)) // an empty file is one empty part
	p := &sentParts{list: make([]object.Part, count), sums: make([]uint32, (size+pieceBytes-1)/pieceBytes)}
	f.total.Store(uint64(size))
	budget := min(length, f.cfg.UploadBytes)
	var g errgroup.Group
	var failed atomic.Bool
	for i := range count {
		if err := f.uploads.Acquire(ctx, budget); err != nil {
			g.Go(func() error { return err }) // the job fails, and may be tried again later
			break
		}
		if failed.Load() {
			f.uploads.Release(budget)
			break
		}
		g.Go(func() error {
			defer f.uploads.Release(budget)
			off := int64(i) * length
			err := f.sendPart(ctx, content, id, p, i, off, min(length, size-off))
			if err != nil {
				failed.Store(true)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	for i, part := range p.list {
		p.crc = crc.Combine(p.crc, part.CRC, min(length, size-int64(i)*length))
	}
	return p, nil
}

// sendPart reads a part, computes the checksum of each piece, and uploads the part.
func (f *flushing) sendPart(ctx context.Context, content Content, id string, p *sentParts, i int, off, n int64) error {
	data := make([]byte, n)
	sum := uint32(0)
	for at := int64(0); at < n; at += pieceBytes {
		piece := data[at:min(at+pieceBytes, n)]
		if err := f.pace(ctx, int64(len(piece))); err != nil {
			return err
		}
		if err := content.ReadRange(ctx, piece, off+at); err != nil {
			return err
		}
		s := crc.Sum(piece)
		p.sums[(off+at)/pieceBytes] = s
		sum = crc.Combine(sum, s, int64(len(piece)))
	}
	err := f.again(ctx, tries, func() (err error) {
		if err := f.pace(ctx, n); err != nil {
			return err
		}
		p.list[i], err = f.deps.Bucket.PutPart(ctx, f.key, id, i+1, data, sum)
		return err
	})
	if err == nil {
		f.advance(uint64(n))
	}
	return err
}
