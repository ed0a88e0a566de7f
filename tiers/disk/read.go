package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/bufpool"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers"
)

// readThrough is how far in bytes a range may begin behind the head and still be
// read together with the head.
const readThrough = 64 << 10

// errMoved means that the record was removed during the read.
var errMoved = errors.New("record was removed during the read")

// reader reads and verifies the records of chunks.
type reader struct {
	deps     *Deps
	log      *slog.Logger
	identity Identity
	heads    *bufpool.Pool
	sums     *sumCache // has its own lock
	failure  *failure
	segments *segmentSet
	reading  atomic.Int32 // reads of the medium in progress
}

// readError classifies the error of a read whose record is still in place.
func (rd *reader) readError(op string, e *entry, err error) error {
	if errors.Is(err, errMoved) {
		return rd.failure.fail(op, fmt.Errorf("segment %d of chunk %s is missing", e.at.segment, e.header.ID))
	}
	if errors.Is(err, moraine.Corrupt) {
		rd.deps.Metrics.CorruptReads.Inc()
		rd.log.Error("chunk is corrupt", "chunk", e.header.ID.String(), "segment", e.at.segment,
			"offset", e.at.off, "err", err)
	}
	return wrap(op, e.header.ID.String(), err)
}

// view reads and verifies a range of a record.
func (rd *reader) view(ctx context.Context, e *entry, off, n int64) (*tiers.View, error) {
	s := rd.segments.get(e.at.segment)
	if s == nil {
		return nil, errMoved
	}
	f, ok, err := s.acquire(rd.deps.FS)
	if err != nil {
		return nil, rd.failure.fail("disk.Get", err)
	}
	if !ok {
		return nil, errMoved
	}
	defer s.release()

	r := reading{rd: rd, f: f, e: e, off: off, n: n}
	r.headSize = e.at.size - int64(crc.BlockCount(e.header.Length))*block
	r.first, r.end = off/block*block, (off+n+block-1)/block*block
	if r.sums = rd.sums.get(e.at); r.sums == nil && r.first > readThrough {
		if err := r.readSums(ctx); err != nil {
			return nil, err
		}
	}
	if r.sums == nil {
		r.skip = r.headSize + r.first
	}
	buf, err := rd.deps.Pool.Get(ctx, int(r.skip+r.end-r.first))
	if err != nil {
		return nil, err
	}
	v, err := r.fill(buf)
	if err != nil {
		buf.Release()
	}
	return v, err
}

// reading is one read of a range of a record.
type reading struct {
	rd       *reader
	f        vfs.File
	e        *entry
	off, n   int64 // the range, in bytes of the chunk
	headSize int64
	sums     []uint32 // nil until read
	// first and end bound the blocks that the range touches. skip is how many bytes
	// of the record before first are read with them: all or none.
	first, end, skip int64
}

// fill reads into buf and verifies. The view owns buf; on error the caller owns it.
func (r *reading) fill(buf *bufpool.Buffer) (*tiers.View, error) {
	p := buf.Bytes()
	if err := r.rd.readAt(r.f, p, r.e.at.off+r.headSize+r.first-r.skip); err != nil {
		return nil, err
	}
	if r.sums == nil {
		var err error
		if r.sums, err = r.rd.sumsOf(r.e, p[:r.headSize]); err != nil {
			return nil, err
		}
	}
	data := p[r.skip:]
	if err := verify(r.e, data, r.sums, r.first); err != nil {
		return nil, err
	}
	rng := data[r.off-r.first:][:r.n]
	v := tiers.NewView(r.e.header, rng, crc.Range(rng, r.sums, r.off, r.e.header.Length), buf.Release)
	v.BlockCRCs, v.Memory = r.sums, int64(cap(p)) // with the head of the record, if it was read too
	return v, nil
}

// readSums reads the block sums from the record's head, and caches them.
func (r *reading) readSums(ctx context.Context) error {
	buf, err := r.rd.heads.Get(ctx, int(r.headSize))
	if err != nil {
		return err
	}
	defer buf.Release()
	if err := r.rd.readAt(r.f, buf.Bytes(), r.e.at.off); err != nil {
		return err
	}
	if r.sums, err = r.rd.sumsOf(r.e, buf.Bytes()); err != nil {
		return err
	}
	r.rd.sums.put(r.e.at, r.sums)
	return nil
}

// readAt reads all of p. It returns Corrupt if the file ends early.
func (rd *reader) readAt(f vfs.File, p []byte, off int64) error {
	began := rd.deps.Clock.Now()
	others := rd.reading.Add(1) - 1
	n, err := f.ReadAt(p, off)
	rd.reading.Add(-1)
	if rd.deps.ReadTook != nil {
		rd.deps.ReadTook(len(p), int(others), rd.deps.Clock.Now().Sub(began))
	}
	rd.deps.Metrics.ReadBytes.Add(float64(n))
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return rd.failure.fail("disk.read", err)
	case n < len(p):
		return &moraine.Error{Op: "disk.Get", Kind: moraine.Corrupt,
			Err: fmt.Errorf("%s ends early, at %d", f.Name(), off+int64(n))}
	}
	return nil
}

// sumsOf decodes a record's head, and compares it with the index entry.
func (rd *reader) sumsOf(e *entry, head []byte) ([]uint32, error) {
	r, headSize, tableSize, err := decodeHead(head, extent{segment: e.at.segment, off: e.at.off}, rd.identity.salt[:])
	if err == nil && (headSize != int64(len(head)) || r.kind != kindChunk || r.header != e.header || r.seq != e.seq) {
		err = fmt.Errorf("head belongs to %s, record %d", r.header.ID, r.seq)
	}
	if err == nil {
		err = decodeTable(&r, head, tableSize)
	}
	if err == nil && crc.CombineBlocks(r.sums, r.header.Length) != r.header.CRC {
		err = errors.New("block checksums do not combine to the chunk checksum")
	}
	if err != nil {
		return nil, &moraine.Error{Op: "disk.Get", Kind: moraine.Corrupt, Err: err}
	}
	return r.sums, nil
}

// verify verifies the blocks of data, which begin at offset first of the chunk.
func verify(e *entry, data []byte, sums []uint32, first int64) error {
	data = data[:min(int64(len(data)), e.header.Length-first)]
	for i := first / block; len(data) > 0; i++ {
		b := data[:min(block, len(data))]
		if crc.Sum(b) != sums[i] {
			return &moraine.Error{Op: "disk.Get", Kind: moraine.Corrupt,
				Err: fmt.Errorf("chunk checksum mismatch in block %d", i)}
		}
		data = data[len(b):]
	}
	return nil
}
