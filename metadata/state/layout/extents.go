package layout

import (
	"bytes"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// ReadExtents answers the extents of a file from an offset on, with the records of their stripes.
func ReadExtents(v *kvtx.View, sc kvtx.Scope, op *wire.GetExtents) (*wire.MetaResponse, error) {
	i, err := tree.ReadInode(v, moraine.InodeID(op.GetInode()))
	if err != nil {
		return nil, err
	}
	tree.SawAttr(v, i)
	if err := tree.Within(v, sc, i); err != nil {
		return nil, err
	}
	ref := i.Id.String()
	switch {
	case len(op.GetAlso()) > wire.MaxAlso:
		return nil, kvtx.Fail(moraine.InvalidArgument, "get extents", ref, "%d files in one request, %d at most", len(op.GetAlso()), wire.MaxAlso)
	case i.Typ == record.TypeDirectory:
		return nil, kvtx.Fail(moraine.IsDirectory, "get extents", ref, "")
	case i.Typ != record.TypeFile:
		return nil, kvtx.Fail(moraine.InvalidArgument, "get extents", ref, "the inode is not a regular file")
	case op.GetGeneration() != 0 && moraine.Generation(op.GetGeneration()) != i.Generation:
		return nil, kvtx.Fail(moraine.Stale, "get extents", ref, "the file has generation %d, but the request expects %d", i.Generation, op.GetGeneration())
	case op.GetOffset() >= tree.MaxFileSize:
		return &wire.MetaResponse{Result: &wire.MetaResponse_Extents{Extents: &wire.ExtentsReply{Attr: i.Attr()}}}, nil
	}
	limit := tree.ListLimit(op.GetLimit())
	exts, err := ExtentsOf(v, i, int64(op.GetOffset()), limit+1)
	if err != nil {
		return nil, err
	}
	reply := &wire.ExtentsReply{Attr: i.Attr()}
	if limit = min(limit, fitting(exts)); len(exts) > limit {
		exts, reply.More = exts[:limit], true
	}
	seen := make(map[kvtx.Source]bool, len(exts))
	reply.Extents = make([]*wire.Extent, len(exts))
	var stripes []*moraine.Stripe
	for n, e := range exts {
		reply.Extents[n] = &wire.Extent{Offset: uint64(e.Offset), Length: uint64(e.Length),
			Stripe: uint64(e.Stripe), StripeOffset: uint64(e.StripeOffset), Object: uint64(e.Object), Inline: uint64(e.Inline)}
		if e.Inline != 0 {
			if err := attachBytes(v, e, reply.Extents[n]); err != nil {
				return nil, err
			}
			continue
		}
		if seen[sourceOf(e)] {
			continue
		}
		seen[sourceOf(e)] = true
		if e.Object != 0 {
			o, err := MustObject(v, e.Object)
			if err != nil {
				return nil, err
			}
			w := o.ToWire()
			if sc.Root != v.K.Top() {
				// A clone shares the object of a file that may be outside the scope, and the
				// object's key is a path.
				w.Key, w.Version, w.Etag, w.Inode = "", "", "", 0
			}
			reply.Objects = append(reply.Objects, w)
			continue
		}
		s, err := fleet.Stripe(v, e.Stripe)
		if err != nil {
			return nil, err
		}
		if s == nil {
			return nil, kvtx.Corrupt("get extents", e.Stripe.String(), "an extent refers to the stripe, which has no record")
		}
		stripes, reply.Stripes = append(stripes, s), append(reply.Stripes, wire.StripeToWire(s))
	}
	if err := tree.LimitReads(v, sc, i, stripes, reply); err != nil {
		return nil, err
	}
	reply.Also, err = smallFiles(v, sc, op.GetAlso())
	return &wire.MetaResponse{Result: &wire.MetaResponse_Extents{Extents: reply}}, err
}

// maxReplyBytes bounds the content in one answer. The first extent always fits.
const maxReplyBytes = 64 * moraine.MaxInline

// fitting returns how many of the first extents have at most maxReplyBytes in the state.
func fitting(exts []moraine.Extent) int {
	var sum int64
	for n, e := range exts {
		if e.Inline == 0 {
			continue
		}
		if sum += e.Length; sum > maxReplyBytes {
			return n
		}
	}
	return len(exts)
}

// attachBytes adds the bytes of an extent in the state to its wire form.
func attachBytes(v *kvtx.View, e moraine.Extent, w *wire.Extent) error {
	content, crc, err := InlineBytes(v, e)
	w.Content, w.ContentCrc = bytes.Clone(content), crc
	return err
}

// ExtentsOf returns at most limit extents of a file that end after from.
func ExtentsOf(v *kvtx.View, i *record.Inode, from int64, limit int) ([]moraine.Extent, error) {
	var out []moraine.Extent
	err := RefsFrom(v, i.Content, from, func(r record.Ref) (bool, error) {
		exts, err := ExtsFrom(v, r, from, limit-len(out))
		out = append(out, exts...)
		return len(out) < limit, err
	})
	return out, err
}

// LevelBeside returns the level of a file's content apart from an object that has all of it. Clones
// that share its stripes, and later content, have only that level.
func LevelBeside(v *kvtx.View, i *record.Inode) (moraine.Level, error) {
	if i.Level <= moraine.NVMe {
		return i.Level, nil
	}
	_, ok, err := v.R.Get(v.K.UnsafeFile(i.Id))
	if ok {
		return moraine.Memory, err // not known to be safer
	}
	return moraine.NVMe, err
}
