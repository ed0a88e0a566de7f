package disk

import (
	"context"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers"
)

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
		e, found, err := d.index.lookup(id)
		if err != nil {
			return nil, d.index.fail(op, err)
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
		v, err := d.reader.view(ctx, &e, off, n)
		if err == nil {
			return v, nil
		}
		// If the bytes do not match, the record may have been deleted or replaced,
		// and its space reclaimed, during the read. The index changes before the
		// reclaim, so a second lookup shows this.
		if now, still, lookErr := d.index.lookup(id); lookErr == nil && (!still || now.seq != e.seq) {
			continue
		}
		return nil, d.reader.readError(op, &e, err)
	}
}
