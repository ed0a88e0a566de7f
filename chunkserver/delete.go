package chunkserver

import (
	"context"
	"sync"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers"
	"github.com/morainefs/moraine/transport/wire"
)

// maxDeletions is the most deletions of one heartbeat and of one acknowledgement.
const maxDeletions = 1024

// deleter carries out deletions that the metadata service requests.
type deleter struct {
	deps *Deps
}

// deletionsWanted is how many deletions a heartbeat requests: none while every
// working device already carries out some.
func (f *fleet) deletionsWanted() uint32 {
	for _, d := range f.devices {
		if d.watch.Err() == nil && !d.deleting.Load() {
			return maxDeletions
		}
	}
	return 0
}

// begin starts the deletions of each device separately, so that a device
// that hangs or fails delays no other. A device carries out one set at a time.
// Deletions that arrive for it meanwhile are dropped, and a later heartbeat gets
// them again. Only the heartbeat loop calls it.
func (del *deleter) begin(ctx context.Context, under *sync.WaitGroup, f *fleet, deletions []*wire.Deletion) {
	for d, list := range f.byDevice(deletions) {
		if !d.deleting.CompareAndSwap(false, true) {
			continue
		}
		under.Go(func() {
			defer d.deleting.Store(false)
			del.deleteOn(ctx, d, list)
		})
	}
}

// delete carries deletions out, device by device.
func (del *deleter) delete(ctx context.Context, f *fleet, deletions []*wire.Deletion) {
	for d, list := range f.byDevice(deletions) {
		del.deleteOn(ctx, d, list)
	}
}

// byDevice groups deletions by device. It leaves out those for a device that is not
// on this host: the device has moved, and the metadata service did not know it.
func (f *fleet) byDevice(deletions []*wire.Deletion) map[*device][]*wire.Deletion {
	lists := map[*device][]*wire.Deletion{}
	for _, w := range deletions {
		if d := f.byID[moraine.DeviceID(w.Device)]; d != nil {
			lists[d] = append(lists[d], w)
		}
	}
	return lists
}

// deleteOn carries out deletions on their device, and acknowledges them when they
// are durable. A later heartbeat gets failed ones again.
func (del *deleter) deleteOn(ctx context.Context, d *device, list []*wire.Deletion) {
	batch := make([]tiers.Deletion, len(list))
	for i, w := range list {
		batch[i] = tiers.Deletion{ID: chunkID(w.Stripe, w.Index), Below: moraine.LayoutVersion(w.Below)}
	}
	if err := d.tier.DeleteAll(ctx, batch); err != nil {
		del.deps.Log.Warn("chunk deletion failed", "device", d.dir, "err", err)
		return
	}
	del.deps.Metrics.Deleted.Add(float64(len(list)))
	del.acknowledge(ctx, list)
}

// acknowledge reports to the metadata service that chunks are gone.
func (del *deleter) acknowledge(ctx context.Context, deleted []*wire.Deletion) {
	for len(deleted) > 0 {
		n := min(len(deleted), maxDeletions)
		_, err := del.deps.Meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_DeletedChunks{
			DeletedChunks: &wire.DeletedChunks{Deleted: deleted[:n]}}})
		if err != nil {
			del.deps.Log.Warn("deletion acknowledgement failed", "err", err)
			return
		}
		deleted = deleted[n:]
	}
}
