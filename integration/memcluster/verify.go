package memcluster

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/transport/wire"
)

// verify verifies the stripes that clients reported as bad, as a chunkserver does: it
// reports the damaged chunks that it finds, and lists all that it has.
func (h *Host) verify(beat *wire.HeartbeatReply) {
	for _, w := range beat.GetVerify() {
		bad, have := h.chunksOf(w)
		if len(bad) > 0 { // readers report them again if this is lost
			_, _ = h.Ask(&wire.MetaRequest{Op: &wire.MetaRequest_ReportBadChunks{ReportBadChunks: &wire.ReportBadChunks{Chunks: bad}}})
		}
		_, _ = h.Ask(&wire.MetaRequest{Op: &wire.MetaRequest_ReportChunks{ReportChunks: &wire.ReportChunks{Device: w.GetDevice(),
			From: w.GetStripe(), To: w.GetStripe() + 1, PassStarted: beat.GetApplied(), Scrub: true, Chunks: have}}})
	}
}

// chunksOf lists the host's chunks of a stripe, and those of them that are damaged.
func (h *Host) chunksOf(w *wire.SuspectChunk) (bad []*wire.BadChunk, have []*wire.ChunkReport) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, ch := range h.chunks {
		if uint64(id.Stripe) != w.GetStripe() {
			continue
		}
		if crc.Sum(ch.Data) != ch.CRC {
			bad = append(bad, &wire.BadChunk{Stripe: w.GetStripe(), Index: uint32(id.Index), Device: w.GetDevice(), Version: ch.Version, Kind: uint32(moraine.Corrupt)})
		}
		have = append(have, &wire.ChunkReport{Stripe: w.GetStripe(), Index: uint32(id.Index), Version: ch.Version, Crc: ch.CRC, Length: uint64(len(ch.Data))})
	}
	return bad, have
}
