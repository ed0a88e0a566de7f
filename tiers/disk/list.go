package disk

import (
	"context"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers"
)

// List implements tiers.Tier, from the index.
func (d *Device) List(ctx context.Context, from moraine.ChunkID, limit int) ([]tiers.Header, error) {
	const op = "disk.List"
	if err := d.begin(op); err != nil {
		return nil, err
	}
	defer d.calls.Done()
	var headers []tiers.Header
	if limit <= 0 {
		return nil, nil
	}
	err := d.index.scanChunks(from, func(e *entry) error {
		headers = append(headers, e.header)
		if len(headers) == limit {
			return errStop
		}
		return ctx.Err()
	})
	if ctx.Err() != nil && len(headers) < limit {
		return nil, wrap(op, d.cfg.Dir, ctx.Err())
	}
	if err != nil {
		return nil, d.index.fail(op, err)
	}
	return headers, nil
}
