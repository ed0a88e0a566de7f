package chunkserver

import (
	"context"
	"errors"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// settleBatch is how many chunks one request settles: the limit of its command.
const settleBatch = 128

// settler settles the chunks of one device.
type settler struct {
	deps *Deps
	d    *device
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
	list := &wire.ListMemory{Device: uint32(st.d.id)}
	for {
		// Read the epoch before any chunk: a result counts only while this process
		// is the one that acknowledged the device's chunks.
		epoch := st.d.epoch.Load()
		resp, err := st.deps.Meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ListMemory{ListMemory: list}})
		if err != nil {
			return err
		}
		page := resp.GetMemory()
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
