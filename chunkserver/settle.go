package chunkserver

import (
	"context"
	"errors"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// settleBatch is how many chunks one request settles: the limit of its command.
	settleBatch = 128
	// fullEvery is how often a pass reads the whole list of recorded chunks. The others read what is new.
	fullEvery = 10 * time.Minute
)

// settler settles the chunks of one device.
type settler struct {
	deps     *Deps
	d        *device
	recorded recorded
	steps    deferredSteps
}

// recorded is what the settler has read of the chunks that are recorded at level memory. The zero value has
// read nothing.
type recorded struct {
	boots  uint64    // of the device, when it was read
	full   time.Time // when the whole list was read
	after  uint64    // where the list was read to: see ListMemory
	last   *wire.SettledChunk
	memory map[moraine.ChunkID]struct{} // recorded chunks that only the memory has
}

// settle signals the settlers of the devices for which the metadata service has records, and of those with
// work of their own.
func (f *fleet) settle(recorded []uint32) {
	signal := func(d *device) {
		select {
		case d.settle <- struct{}{}:
		default: // already at work
		}
	}
	for _, id := range recorded {
		if d := f.byID[moraine.DeviceID(id)]; d != nil {
			signal(d)
		}
	}
	for _, d := range f.devices {
		if d.unsettled.Load() || len(d.tier.Deferred().Steps()) > 0 {
			signal(d)
		}
	}
}

// run reports where the chunks of a device that are recorded at level memory
// are, whenever the metadata service has such records. It ends when ctx ends or the
// device is out of service. The records are the list, so no state of this process
// is needed. After a restart, the next process reports which chunks it found on the
// device, and which it did not.
func (st *settler) run(ctx context.Context) {
	for st.d.tier.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-st.d.settle:
		}
		err := st.settle(ctx)
		st.d.unsettled.Store(err != nil)
		if err != nil {
			st.recorded = recorded{} // the next pass reads the whole list
			if ctx.Err() == nil {
				st.deps.Log.Warn("memory chunk settle failed", "device", st.d.dir, "err", err)
			}
		}
	}
}

// settle processes once the chunks that are recorded at level memory: those that were recorded since
// the last pass, and those that have left the memory since. It leaves those that are still being
// written to the device for a later pass. So a pass costs what has changed, however much is in memory.
func (st *settler) settle(ctx context.Context) error {
	// Read the epoch before any chunk: a result counts only while this process
	// is the one that acknowledged the device's chunks.
	epoch := st.d.epoch.Load()
	now := st.deps.Clock.Now()
	// Before the list is read: a chunk that leaves the memory later is in the next pass.
	written, deleted, all := st.d.tier.Left()
	if boots := st.d.boots.Load(); all || st.recorded.memory == nil || st.recorded.boots != boots || now.Sub(st.recorded.full) >= fullEvery {
		st.recorded = recorded{boots: boots, full: now, memory: map[moraine.ChunkID]struct{}{}}
	}
	if err := st.report(ctx, epoch, st.recorded.changed(written, deleted)); err != nil {
		return err
	}
	named := st.steps.next(st.d.tier.Deferred().Steps())
	list := &wire.ListMemory{Device: uint32(st.d.id), DeferredFor: named, OfGone: st.steps.ofGone(st.d.tier)}
	for first := true; ; first = false {
		list.After = st.recorded.after
		list.AfterStripe, list.AfterIndex = st.recorded.last.GetStripe(), st.recorded.last.GetIndex()
		resp, err := st.deps.Meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ListMemory{ListMemory: list}})
		if err != nil {
			return err
		}
		page := resp.GetMemory()
		if err := st.report(ctx, epoch, st.recorded.add(page)); err != nil {
			return err
		}
		if first { // one answer is enough
			st.steps.judge(st.deps.Clock.Now(), named, page)
			st.writeDeferred(page.GetWrite())
			if err := st.drop(ctx, page.GetDead()); err != nil {
				return err
			}
			list.DeferredFor, list.OfGone = nil, nil
		}
		if !page.GetMore() || len(page.GetChunks()) == 0 {
			return nil
		}
	}
}

// changed returns those of the written chunks that are recorded, and forgets the deleted ones: their
// records went before.
func (r *recorded) changed(written, deleted []moraine.ChunkID) (out []moraine.ChunkID) {
	for _, id := range deleted {
		delete(r.memory, id)
	}
	for _, id := range written {
		if _, known := r.memory[id]; known {
			out = append(out, id)
		}
	}
	return out
}

// add notes a page of the list, and returns its chunks.
func (r *recorded) add(page *wire.MemoryReply) []moraine.ChunkID {
	ids := make([]moraine.ChunkID, len(page.GetChunks()))
	for n, c := range page.GetChunks() {
		ids[n] = chunkID(c.Stripe, c.Index)
		r.after, r.last = page.GetAt(), c
	}
	return ids
}

// locate determines where chunks are, and leaves out those that are still in
// memory.
func (st *settler) locate(ctx context.Context, ids []moraine.ChunkID) ([]*wire.SettledChunk, error) {
	var out []*wire.SettledChunk
	for _, id := range ids {
		c := &wire.SettledChunk{Stripe: uint64(id.Stripe), Index: uint32(id.Index)}
		h, level, err := st.d.tier.Where(ctx, id)
		switch {
		case errors.Is(err, moraine.NotFound), errors.Is(err, moraine.Corrupt):
			c.Gone = true
		case err != nil:
			return nil, err
		case level < moraine.NVMe:
			st.recorded.memory[id] = struct{}{}
			continue
		default:
			c.Version, c.Crc = uint32(h.Version), h.CRC
		}
		delete(st.recorded.memory, id)
		out = append(out, c)
	}
	return out, nil
}

// report reports where recorded chunks are that have left the memory.
func (st *settler) report(ctx context.Context, epoch uint64, ids []moraine.ChunkID) error {
	chunks, err := st.locate(ctx, ids)
	if err != nil {
		return err
	}
	for len(chunks) > 0 {
		n := min(len(chunks), settleBatch)
		_, err := st.deps.Meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_SettleChunks{
			SettleChunks: &wire.SettleChunks{Device: uint32(st.d.id), Epoch: epoch, Chunks: chunks[:n]}}})
		if err != nil {
			return err
		}
		for _, c := range chunks[:n] {
			if c.Gone {
				st.deps.Metrics.Settled.WithLabelValues("gone").Inc()
				st.deps.Log.Warn("memory chunk lost or damaged", "device", st.d.dir, "chunk", chunkID(c.Stripe, c.Index).String())
			} else {
				st.deps.Metrics.Settled.WithLabelValues("written").Inc()
			}
		}
		chunks = chunks[n:]
	}
	return nil
}
