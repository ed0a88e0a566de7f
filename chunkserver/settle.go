package chunkserver

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// settleBatch is how many chunks one request settles: the limit of its command.
	settleBatch = 128
	// maxDeferredSteps is how many steps with deferred chunks a pass names; the next one names others if
	// there are more.
	maxDeferredSteps = 1024
	// goneAfter is how long after the removal of its step a deferred chunk waits for its deletion. A
	// chunk that is still recorded then belongs to another file too, and is written.
	goneAfter = time.Minute
)

// settler settles the chunks of one device.
type settler struct {
	deps *Deps
	d    *device
	// gone has since when the metadata service says of a step with deferred chunks that it was removed.
	gone map[uint64]time.Time
	turn int // of the steps that the next pass names first
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
		if err := st.settle(ctx); err != nil && ctx.Err() == nil {
			st.deps.Log.Warn("memory chunk settle failed", "device", st.d.dir, "err", err)
		}
	}
}

// settle processes once the chunks that are recorded at level memory. It leaves
// those that are still being written to the device for the next time.
func (st *settler) settle(ctx context.Context) error {
	steps := st.nextSteps(st.d.tier.Deferred())
	list := &wire.ListMemory{Device: uint32(st.d.id), DeferredFor: steps}
	for first := true; ; first = false {
		// Read the epoch before any chunk: a result counts only while this process
		// is the one that acknowledged the device's chunks.
		epoch := st.d.epoch.Load()
		resp, err := st.deps.Meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ListMemory{ListMemory: list}})
		if err != nil {
			return err
		}
		page := resp.GetMemory()
		if first { // one answer is enough
			st.judge(steps, page)
			list.DeferredFor = nil
		}
		st.writeDeferred(page)
		settled, err := st.locate(ctx, page.GetChunks())
		if err != nil {
			return err
		}
		if err := st.report(ctx, epoch, settled); err != nil {
			return err
		}
		if !page.GetMore() || len(page.GetChunks()) == 0 {
			return nil
		}
		last := page.Chunks[len(page.Chunks)-1]
		list.AfterStripe, list.AfterIndex = last.Stripe, last.Index
	}
}

// nextSteps returns the steps that this pass names, in turn, and forgets what is known of steps without
// deferred chunks.
func (st *settler) nextSteps(steps []uint64) []uint64 {
	for step := range st.gone {
		if _, deferred := slices.BinarySearch(steps, step); !deferred {
			delete(st.gone, step)
		}
	}
	if len(steps) <= maxDeferredSteps {
		return steps
	}
	st.turn %= len(steps)
	named := slices.Concat(steps[st.turn:], steps[:st.turn])[:maxDeferredSteps]
	st.turn += maxDeferredSteps
	return named
}

// judge notes what the metadata service says of the steps that a pass has named.
func (st *settler) judge(named []uint64, page *wire.MemoryReply) {
	now := st.deps.Clock.Now()
	if st.gone == nil {
		st.gone = make(map[uint64]time.Time)
	}
	before := make(map[uint64]time.Time)
	for _, step := range named {
		if at, known := st.gone[step]; known {
			before[step] = at
			delete(st.gone, step)
		}
	}
	for _, step := range page.GetGone() {
		at, known := before[step]
		if !known {
			at = now
		}
		st.gone[step] = at
	}
}

// writeDeferred has the chunks of steps written that go on to the device, and those of a page that
// outlived their step.
func (st *settler) writeDeferred(page *wire.MemoryReply) {
	if len(page.GetWrite()) == 0 && len(st.gone) == 0 {
		return
	}
	now := st.deps.Clock.Now()
	write := make(map[uint64]bool, len(page.GetWrite()))
	for _, step := range page.GetWrite() {
		write[step] = true
	}
	recorded := make(map[moraine.ChunkID]bool, len(page.GetChunks()))
	for _, c := range page.GetChunks() {
		recorded[chunkID(c.Stripe, c.Index)] = true
	}
	st.d.tier.WriteDeferred(func(id moraine.ChunkID, step uint64) bool {
		at, gone := st.gone[step]
		return write[step] || gone && recorded[id] && now.Sub(at) >= goneAfter
	})
}

// locate determines where chunks are, and leaves out those that are still in
// memory.
func (st *settler) locate(ctx context.Context, chunks []*wire.SettledChunk) ([]*wire.SettledChunk, error) {
	var out []*wire.SettledChunk
	for _, c := range chunks {
		h, level, err := st.d.tier.Where(ctx, chunkID(c.Stripe, c.Index))
		switch {
		case errors.Is(err, moraine.NotFound), errors.Is(err, moraine.Corrupt):
			out = append(out, &wire.SettledChunk{Stripe: c.Stripe, Index: c.Index, Gone: true})
		case err != nil:
			return nil, err
		case level >= moraine.NVMe:
			out = append(out, &wire.SettledChunk{Stripe: c.Stripe, Index: c.Index, Version: uint32(h.Version), Crc: h.CRC})
		}
	}
	return out, nil
}

func (st *settler) report(ctx context.Context, epoch uint64, chunks []*wire.SettledChunk) error {
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
