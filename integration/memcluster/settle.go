package memcluster

import (
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// settle reports, as a chunkserver does, that the chunks which are recorded at level memory are on
// the device by now. A host that is Weak never writes them, and a deferred chunk waits until the
// service says that its step goes on to the devices.
func (h *Host) settle(beat *wire.HeartbeatReply) {
	h.mu.Lock()
	weak, epoch := h.faults.Weak, h.epoch
	h.mu.Unlock()
	for _, device := range beat.GetMemory() {
		if weak {
			return
		}
		resp, err := h.Ask(&wire.MetaRequest{Op: &wire.MetaRequest_ListMemory{ListMemory: &wire.ListMemory{Device: device, DeferredFor: h.deferred()}}})
		if err != nil {
			return // the next heartbeat says it again
		}
		h.writeDeferred(resp.GetMemory().GetWrite())
		for chunks := range slices.Chunk(resp.GetMemory().GetChunks(), settleBatch) {
			_, _ = h.Ask(&wire.MetaRequest{Op: &wire.MetaRequest_SettleChunks{SettleChunks: &wire.SettleChunks{
				Device: device, Epoch: epoch, Chunks: h.located(chunks)}}})
		}
	}
}

// settleBatch is the limit of one request.
const settleBatch = 128

// located says of chunks what the device has.
func (h *Host) located(chunks []*wire.SettledChunk) (out []*wire.SettledChunk) {
	for _, c := range chunks {
		ch := h.Chunk(moraine.ChunkID{Stripe: moraine.StripeID(c.GetStripe()), Index: uint8(c.GetIndex())})
		if ch != nil && ch.DeferredFor != 0 {
			continue
		}
		w := &wire.SettledChunk{Stripe: c.GetStripe(), Index: c.GetIndex(), Gone: ch == nil}
		if ch != nil {
			w.Version, w.Crc = ch.Version, ch.CRC
		}
		out = append(out, w)
	}
	return out
}

// deferred returns the steps of deferred chunks.
func (h *Host) deferred() []uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	var steps []uint64
	for _, ch := range h.chunks {
		if ch.DeferredFor != 0 {
			steps = append(steps, ch.DeferredFor)
		}
	}
	slices.Sort(steps)
	return slices.Compact(steps)
}

// writeDeferred writes the deferred chunks of steps.
func (h *Host) writeDeferred(steps []uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, ch := range h.chunks {
		if slices.Contains(steps, ch.DeferredFor) {
			ch.DeferredFor = 0
		}
	}
}
