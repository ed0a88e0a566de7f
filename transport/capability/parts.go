package capability

import (
	"cmp"
	"slices"
	"sort"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// after reports whether a part begins after a byte of a chunk.
func after(p *wire.ChunkPart, stripe uint64, index uint32, offset uint64) bool {
	return cmp.Or(cmp.Compare(p.Stripe, stripe), cmp.Compare(p.Index, index), cmp.Compare(p.Offset, offset)) > 0
}

// partsInOrder reports whether each part is within a chunk, and after the previous
// one without touching it. All copies have index 0.
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

// Parts returns where ranges of a stripe's bytes are in its chunks: ordered and
// separate, in the form of a capability.
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

// begins reports whether a range of an object begins after a byte of one.
func begins(r *wire.ObjectRange, object, offset uint64) bool {
	return r.Object > object || r.Object == object && r.Offset > offset
}

// objectsInOrder reports whether each range is not empty, and after the previous
// one without touching it.
func objectsInOrder(ranges []*wire.ObjectRange) bool {
	for n, r := range ranges {
		if r.Object == 0 || r.Length == 0 || r.Offset+r.Length < r.Offset {
			return false
		}
		if n > 0 && !begins(r, ranges[n-1].Object, ranges[n-1].Offset+ranges[n-1].Length) {
			return false
		}
	}
	return true
}

// CoversObject reports whether the claims cover a range of an object.
func CoversObject(c *wire.CapabilityClaims, object, offset, length uint64) bool {
	n := sort.Search(len(c.Objects), func(n int) bool { return begins(c.Objects[n], object, offset) })
	if n == 0 {
		return false
	}
	r := c.Objects[n-1]
	return r.Object == object && length <= r.Length && offset-r.Offset <= r.Length-length
}

// ObjectRanges returns the ranges of objects in extents: ordered and separate, in
// the form of a capability.
func ObjectRanges(extents []*wire.Extent) []*wire.ObjectRange {
	var all []*wire.ObjectRange
	for _, e := range extents {
		if e.Object != 0 {
			all = append(all, &wire.ObjectRange{Object: e.Object, Offset: e.StripeOffset, Length: e.Length})
		}
	}
	slices.SortFunc(all, func(a, b *wire.ObjectRange) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Offset, b.Offset))
	})
	out := all[:0]
	for _, r := range all {
		if n := len(out); n > 0 && out[n-1].Object == r.Object && r.Offset <= out[n-1].Offset+out[n-1].Length {
			out[n-1].Length = max(out[n-1].Length, r.Offset+r.Length-out[n-1].Offset)
			continue
		}
		out = append(out, r)
	}
	return out
}
