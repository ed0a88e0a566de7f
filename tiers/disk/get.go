package disk

import (
	"context"
	"errors"
	"fmt"
	"io"

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

// Get implements tiers.Tier.
func (d *Device) Get(ctx context.Context, id moraine.ChunkID, off int64, dst []byte) (tiers.Header, error) {
	v, err := d.View(ctx, id, off, int64(len(dst)))
	if err != nil {
		return tiers.Header{}, err
	}
	defer v.Release()
	copy(dst, v.Data)
	return v.Header, nil
}

// View implements tiers.Viewer.
func (d *Device) View(ctx context.Context, id moraine.ChunkID, off, n int64) (*tiers.View, error) {
	const op = "disk.Get"
	if err := d.begin(op); err != nil {
		return nil, err
	}
	defer d.calls.Done()
	for {
		e, found, err := d.lookup(id)
		if err != nil {
			return nil, d.indexError(op, err)
		}
		if !found {
			return nil, &moraine.Error{Op: op, Ref: id.String(), Kind: moraine.NotFound}
		}
		if off < 0 || n < 0 || off > e.header.Length || n > e.header.Length-off {
			return nil, &moraine.Error{Op: op, Ref: id.String(), Kind: moraine.InvalidArgument,
				Err: fmt.Errorf("range of %d bytes at offset %d exceeds the chunk of %d bytes", n, off, e.header.Length)}
		}
		if n == 0 {
			return tiers.NewView(e.header, nil, 0, nil), nil
		}
		v, err := d.view(ctx, &e, off, n)
		if err == nil {
			return v, nil
		}
		// If the bytes do not match, the record may have been deleted or replaced,
		// and its space reclaimed, during the read. The index changes before the
		// reclaim, so a second lookup shows this.
		if now, still, lookErr := d.lookup(id); lookErr == nil && (!still || now.seq != e.seq) {
			continue
		}
		return nil, d.readError(op, &e, err)
	}
}

// readError classifies the error of a read whose record is still in place.
func (d *Device) readError(op string, e *entry, err error) error {
	if errors.Is(err, errMoved) {
		return d.fail(op, fmt.Errorf("segment %d of chunk %s is missing", e.at.segment, e.header.ID))
	}
	if errors.Is(err, moraine.Corrupt) {
		d.deps.Metrics.CorruptReads.Inc()
		d.log.Error("chunk is corrupt", "chunk", e.header.ID.String(), "segment", e.at.segment,
			"offset", e.at.off, "err", err)
	}
	return wrap(op, e.header.ID.String(), err)
}

// view reads and verifies a range of a record.
func (d *Device) view(ctx context.Context, e *entry, off, n int64) (*tiers.View, error) {
	s := d.segment(e.at.segment)
	if s == nil {
		return nil, errMoved
	}
	f, ok, err := s.acquire(d.deps.FS)
	if err != nil {
		return nil, d.fail("disk.Get", err)
	}
	if !ok {
		return nil, errMoved
	}
	defer s.release()

	r := reading{d: d, f: f, e: e, off: off, n: n}
	r.headSize = e.at.size - int64(crc.BlockCount(e.header.Length))*block
	r.first, r.end = off/block*block, (off+n+block-1)/block*block
	if r.sums = d.sums.get(e.at); r.sums == nil && r.first > readThrough {
		if err := r.readSums(ctx); err != nil {
			return nil, err
		}
	}
	if r.sums == nil {
		r.skip = r.headSize + r.first
	}
	buf, err := d.deps.Pool.Get(ctx, int(r.skip+r.end-r.first))
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
	d        *Device
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
	if err := r.d.readAt(r.f, p, r.e.at.off+r.headSize+r.first-r.skip); err != nil {
		return nil, err
	}
	if r.sums == nil {
		var err error
		if r.sums, err = r.d.sumsOf(r.e, p[:r.headSize]); err != nil {
			return nil, err
		}
	}
	data := p[r.skip:]
	if err := verify(r.e, data, r.sums, r.first); err != nil {
		return nil, err
	}
	rng := data[r.off-r.first:][:r.n]
	v := tiers.NewView(r.e.header, rng, crc.Range(rng, r.sums, r.off, r.e.header.Length), buf.Release)
	v.BlockCRCs = r.sums
	return v, nil
}

// readSums reads the block sums from the record's head, and caches them.
func (r *reading) readSums(ctx context.Context) error {
	buf, err := r.d.heads.Get(ctx, int(r.headSize))
	if err != nil {
		return err
	}
	defer buf.Release()
	if err := r.d.readAt(r.f, buf.Bytes(), r.e.at.off); err != nil {
		return err
	}
	if r.sums, err = r.d.sumsOf(r.e, buf.Bytes()); err != nil {
		return err
	}
	r.d.sums.put(r.e.at, r.sums)
	return nil
}

// readAt reads all of p. It returns Corrupt if the file ends early.
func (d *Device) readAt(f vfs.File, p []byte, off int64) error {
	began := d.deps.Clock.Now()
	others := d.reading.Add(1) - 1
	n, err := f.ReadAt(p, off)
	d.reading.Add(-1)
	if d.deps.ReadTook != nil {
		d.deps.ReadTook(len(p), int(others), d.deps.Clock.Now().Sub(began))
	}
	d.deps.Metrics.ReadBytes.Add(float64(n))
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return d.fail("disk.read", err)
	case n < len(p):
		return &moraine.Error{Op: "disk.Get", Kind: moraine.Corrupt,
			Err: fmt.Errorf("%s ends early, at %d", f.Name(), off+int64(n))}
	}
	return nil
}

// sumsOf decodes a record's head, and compares it with the index entry.
func (d *Device) sumsOf(e *entry, head []byte) ([]uint32, error) {
	r, headSize, tableSize, err := decodeHead(head, extent{segment: e.at.segment, off: e.at.off}, d.identity.salt[:])
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
