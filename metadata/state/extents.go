package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// readExtents returns the extents of a file from an offset on, with the
// records of the stripes that they name.
func (v *view) readExtents(sc scope, op *wire.GetExtents) (*wire.MetaResponse, error) {
	i, err := v.inode(moraine.InodeID(op.GetInode()))
	if err != nil {
		return nil, err
	}
	v.sawAttr(i)
	if err := v.within(sc, i); err != nil {
		return nil, err
	}
	ref := i.Id.String()
	switch {
	case i.Typ == record.TypeDirectory:
		return nil, fail(moraine.IsDirectory, "get extents", ref, "")
	case i.Typ != record.TypeFile:
		return nil, fail(moraine.InvalidArgument, "get extents", ref, "not a regular file")
	case op.GetGeneration() != 0 && moraine.Generation(op.GetGeneration()) != i.Generation:
		return nil, fail(moraine.Stale, "get extents", ref, "generation is %d, not %d", i.Generation, op.GetGeneration())
	case op.GetOffset() >= MaxFileSize:
		return &wire.MetaResponse{Result: &wire.MetaResponse_Extents{Extents: &wire.ExtentsReply{Attr: i.Attr()}}}, nil
	}
	limit := listLimit(op.GetLimit())
	exts, err := v.extentsOf(i, int64(op.GetOffset()), limit+1)
	if err != nil {
		return nil, err
	}
	reply := &wire.ExtentsReply{Attr: i.Attr()}
	if len(exts) > limit {
		exts, reply.More = exts[:limit], true
	}
	seen := make(map[source]bool, len(exts))
	reply.Extents = make([]*wire.Extent, len(exts))
	var stripes []*moraine.Stripe
	for n, e := range exts {
		reply.Extents[n] = &wire.Extent{Offset: uint64(e.Offset), Length: uint64(e.Length),
			Stripe: uint64(e.Stripe), StripeOffset: uint64(e.StripeOffset), Object: uint64(e.Object)}
		if seen[sourceOf(e)] {
			continue
		}
		seen[sourceOf(e)] = true
		if e.Object != 0 {
			o, err := v.mustObject(e.Object)
			if err != nil {
				return nil, err
			}
			w := o.ToWire()
			if sc.root != v.k.top() {
				// A clone shares the object of a file that may be outside the scope, and
				// its key is a path.
				w.Key, w.Version, w.Etag, w.Inode = "", "", "", 0
			}
			reply.Objects = append(reply.Objects, w)
			continue
		}
		s, err := v.stripe(e.Stripe)
		if err != nil {
			return nil, err
		}
		if s == nil {
			return nil, &moraine.Error{Op: "get extents", Ref: e.Stripe.String(), Kind: moraine.Corrupt}
		}
		stripes, reply.Stripes = append(stripes, s), append(reply.Stripes, wire.StripeToWire(s))
	}
	if err := v.limitReads(sc, i, stripes, reply); err != nil {
		return nil, err
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Extents{Extents: reply}}, nil
}

// extentsOf returns at most limit extents of a file that end past from.
func (v *view) extentsOf(i *record.Inode, from int64, limit int) ([]moraine.Extent, error) {
	var out []moraine.Extent
	err := v.refsFrom(i.Content, from, func(r record.Ref) (bool, error) {
		exts, err := v.extsFrom(r, from, limit-len(out))
		out = append(out, exts...)
		return len(out) < limit, err
	})
	return out, err
}
