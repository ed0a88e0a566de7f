package capability

import (
	"cmp"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// after reports whether a part begins behind a byte of a chunk.
func after(p *wire.ChunkPart, stripe uint64, index uint32, offset uint64) bool {
	return cmp.Or(cmp.Compare(p.Stripe, stripe), cmp.Compare(p.Index, index), cmp.Compare(p.Offset, offset)) > 0
}

// partsInOrder reports whether each part is within a chunk, and behind the one before it
// without touching it. Copies have one index, 0, for all.
func partsInOrder(parts []*wire.ChunkPart) bool {
	for n, p := range parts {
		if p.Stripe == 0 || p.Index >= moraine.MaxChunks || p.Copies && p.Index != 0 || p.Length == 0 ||
			p.Offset > moraine.MaxChunkSize || p.Length > moraine.MaxChunkSize-p.Offset {
			return false
		}
		if n == 0 {
			continue
		}
		o := parts[n-1]
		if !after(p, o.Stripe, o.Index, o.Offset+o.Length) || p.Stripe == o.Stripe && p.Copies != o.Copies {
			return false
		}
	}
	return true
}

// Parts returns where ranges of a stripe's bytes are in its chunks: in order and apart, as a
// capability has them.
func Parts(s *wire.Stripe, ranges []*wire.Extent) []*wire.ChunkPart {
	scheme := moraine.Scheme{K: uint8(s.GetScheme().GetK()), M: uint8(s.GetScheme().GetM())}
	chunk := uint64(moraine.MaxChunkSize)
	if !scheme.IsCopies() {
		chunk = uint64(scheme.ChunkLen(int64(s.Length)))
	}
	var all []*wire.ChunkPart
	for _, r := range ranges {
		for off, end := r.StripeOffset, r.StripeOffset+r.Length; off < end; {
			n := min(end-off, chunk-off%chunk)
			all = append(all, &wire.ChunkPart{Stripe: s.Id, Index: uint32(off / chunk), Copies: scheme.IsCopies(), Offset: off % chunk, Length: n})
			off += n
		}
	}
	slices.SortFunc(all, func(a, b *wire.ChunkPart) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.Offset, b.Offset))
	})
	out := all[:0]
	for _, p := range all {
		if n := len(out); n > 0 && out[n-1].Index == p.Index && p.Offset <= out[n-1].Offset+out[n-1].Length {
			out[n-1].Length = max(out[n-1].Length, p.Offset+p.Length-out[n-1].Offset)
			continue
		}
		out = append(out, p)
	}
	return out
}
