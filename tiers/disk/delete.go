package disk

import (
	"cmp"
	"context"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers"
)

// Delete implements tiers.Tier.
func (d *Device) Delete(ctx context.Context, id moraine.ChunkID, below moraine.LayoutVersion) error {
	return d.DeleteAll(ctx, []tiers.Deletion{{ID: id, Below: below}})
}

// DeleteAll implements tiers.Deleter. A thousand deletions form one record and
// share one sync.
func (d *Device) DeleteAll(ctx context.Context, deletions []tiers.Deletion) error {
	const op = "disk.Delete"
	if err := d.begin(op); err != nil {
		return err
	}
	defer d.calls.Done()
	for _, some := range slices.Collect(slices.Chunk(mergeDeletions(deletions), maxDeletions)) {
		if err := d.deleteSome(ctx, some); err != nil {
			return wrap(op, some[0].ID.String(), err)
		}
	}
	return nil
}

// mergeDeletions returns the deletions in the order of chunks, each chunk once. The
// order prevents a deadlock of two callers that claim several chunks.
func mergeDeletions(deletions []tiers.Deletion) []tiers.Deletion {
	sorted := slices.SortedFunc(slices.Values(deletions), func(a, b tiers.Deletion) int {
		return cmp.Or(cmp.Compare(a.ID.Stripe, b.ID.Stripe), cmp.Compare(a.ID.Index, b.ID.Index),
			cmp.Compare(b.Below, a.Below))
	})
	return slices.CompactFunc(sorted, func(a, b tiers.Deletion) bool { return a.ID == b.ID })
}

func (d *Device) deleteSome(ctx context.Context, wanted []tiers.Deletion) error {
	for i, w := range wanted {
		if err := d.claims.Take(ctx, w.ID); err != nil {
			for _, held := range wanted[:i] {
				d.claims.Drop(held.ID)
			}
			return err
		}
	}
	defer func() {
		for _, w := range wanted {
			d.claims.Drop(w.ID)
		}
	}()
	rec := record{kind: kindTombstone}
	for _, w := range wanted {
		e, found, err := d.index.lookup(w.ID)
		if err != nil {
			return d.index.fail("disk.Delete", err)
		}
		if found && e.header.Version < w.Below {
			rec.deletions = append(rec.deletions, deletion{id: w.ID, below: w.Below, victim: e.at})
		}
	}
	if len(rec.deletions) == 0 {
		return nil
	}
	return d.bringDown(ctx, &rec)
}

// bringDown writes a tombstone and releases its victims. On a full file system it
// removes the ballast first: an operation that frees space must not need free
// space.
func (d *Device) bringDown(ctx context.Context, rec *record) error {
	a := appendix{
		headSize: headBlocks(len(rec.deletions)*deletedSize) * block,
		encode: func(dst []byte, sl slot) {
			rec.seq, rec.durable, rec.at = sl.seq, sl.durable, sl.at
			encodeHead(dst, rec, d.identity.salt[:])
		},
		apply: func(slot) error {
			for i := range rec.deletions {
				if err := d.index.remove(rec.deletions[i].id); err != nil {
					return err
				}
				d.reclaim.markDead(rec.deletions[i].id, rec.deletions[i].victim)
				d.segments.dropLive(rec.deletions[i].victim)
			}
			return nil
		},
	}
	err := d.app.append(ctx, a)
	if err != nil && isNoSpace(err) && d.ballast.drop() {
		err = d.app.append(ctx, a)
	}
	return err
}
