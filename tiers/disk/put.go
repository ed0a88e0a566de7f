package disk

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/tiers"
)

// Put implements tiers.Tier. It writes data from the caller's buffer, without a
// copy and without a second checksum pass. It trusts blockCRCs if they combine to
// h.CRC, since the receiver computed both when the bytes arrived. After IOError,
// and after a crash before Put returns, the chunk is there whole or not at all.
func (d *Device) Put(ctx context.Context, h tiers.Header, data []byte, blockCRCs []uint32) error {
	const op = "disk.Put"
	if err := d.begin(op); err != nil {
		return err
	}
	defer d.calls.Done()
	if err := d.checkPut(&h, data, blockCRCs); err != nil {
		return &moraine.Error{Op: op, Ref: h.ID.String(), Kind: moraine.KindOf(err), Err: err}
	}
	if err := d.claims.Take(ctx, h.ID); err != nil {
		return wrap(op, h.ID.String(), err)
	}
	defer d.claims.Drop(h.ID)
	old, found, err := d.index.lookup(h.ID)
	if err != nil {
		return d.index.fail(op, err)
	}
	if found && old.header.Version >= h.Version {
		return alreadyThere(&old.header, &h)
	}
	if err := d.put(ctx, &h, data, blockCRCs, old, found); err != nil {
		return wrap(op, h.ID.String(), err)
	}
	return nil
}

// alreadyThere returns the answer to a Put of h where old exists with the same or a
// greater version.
func alreadyThere(old, h *tiers.Header) error {
	switch {
	case old.Version > h.Version:
		return &moraine.Error{Op: "disk.Put", Ref: h.ID.String(), Kind: moraine.Stale,
			Err: fmt.Errorf("device has version %d, the put has version %d", old.Version, h.Version)}
	case *old != *h:
		return &moraine.Error{Op: "disk.Put", Ref: h.ID.String(), Kind: moraine.Exists,
			Err: fmt.Errorf("device has other bytes of version %d", h.Version)}
	}
	return nil
}

func (d *Device) checkPut(h *tiers.Header, data []byte, sums []uint32) error {
	bad := func(format string, args ...any) error {
		return &moraine.Error{Kind: moraine.InvalidArgument, Err: fmt.Errorf(format, args...)}
	}
	padded := crc.BlockCount(h.Length) * block
	switch {
	case h.Length < 1 || h.Length > moraine.MaxChunkSize:
		return &moraine.Error{Kind: moraine.TooLarge, Err: fmt.Errorf("chunk of %d bytes is too large", h.Length)}
	case int64(len(data)) != h.Length:
		return bad("%d bytes do not match the header's length of %d", len(data), h.Length)
	case cap(data) < padded || uintptr(unsafe.Pointer(unsafe.SliceData(data)))%block != 0:
		return bad("buffer is not aligned to blocks")
	case len(sums) != crc.BlockCount(h.Length):
		return bad("%d block checksums for %d bytes", len(sums), h.Length)
	case h.Cluster != d.identity.Cluster:
		return &moraine.Error{Kind: moraine.WrongCluster, Err: fmt.Errorf("chunk belongs to cluster %s", h.Cluster)}
	case crc.CombineBlocks(sums, h.Length) != h.CRC:
		return &moraine.Error{Kind: moraine.Corrupt, Err: fmt.Errorf("block checksums do not combine to %08x", h.CRC)}
	}
	return nil
}

// put writes the record and makes it current for the chunk. old, if found, is dead
// after that.
func (d *Device) put(ctx context.Context, h *tiers.Header, data []byte, sums []uint32, old entry, found bool) error {
	head, blocks := chunkBlocks(h.Length)
	if c := d.cfg.CapacityBytes; c > 0 && uint64(d.spaceUsed()+(head+blocks)*block) > c {
		return &moraine.Error{Op: "disk.Put", Ref: d.cfg.Dir, Kind: moraine.NoSpace,
			Err: fmt.Errorf("device capacity of %d bytes is used up", c)}
	}
	padded := data[:blocks*block]
	clear(padded[len(data):])
	rec := record{kind: kindChunk, header: *h, sums: sums}
	if found {
		rec.replaces = old.at
	}
	return d.app.append(ctx, appendix{
		headSize: head * block,
		data:     padded,
		encode: func(dst []byte, sl slot) {
			rec.seq, rec.durable, rec.at = sl.seq, sl.durable, sl.at
			encodeHead(dst, &rec, d.identity.salt[:])
		},
		apply: func(sl slot) error {
			if err := d.index.set(&entry{seq: sl.seq, at: sl.at, header: *h}); err != nil {
				return err
			}
			d.segments.addLive(sl.seg, sl.at)
			if found {
				d.reclaim.markDead(h.ID, old.at)
				d.segments.dropLive(old.at)
			}
			return nil
		},
	})
}
