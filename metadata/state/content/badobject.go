package content

import (
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tier"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// ReadBadObjects lists bad objects with the files from which they were made. A confined caller sees
// those of files in its scope.
func ReadBadObjects(v *kvtx.View, sc kvtx.Scope, op *wire.ListBadObjects) (*wire.MetaResponse, error) {
	reply := &wire.BadObjectsReply{}
	limit := tree.ListLimit(op.GetLimit())
	err := tier.EachBad(v, moraine.ObjectID(op.GetAfter()), func(o *record.Object, b *record.BadObject) (bool, error) {
		w, err := describeBad(v, sc, o, b)
		if err != nil || w == nil {
			return err == nil, err
		}
		if reply.More = len(reply.Objects) == limit; reply.More {
			return false, nil
		}
		reply.Objects = append(reply.Objects, w)
		return true, nil
	})
	return &wire.MetaResponse{Result: &wire.MetaResponse_BadObjects{BadObjects: reply}}, err
}

// describeBad returns which bytes of which file a bad object has; nil if the caller may not see the
// file.
func describeBad(v *kvtx.View, sc kvtx.Scope, o *record.Object, b *record.BadObject) (*wire.BadObject, error) {
	all := sc.Root == v.K.Top()
	if harms, err := tier.Harms(v, o); !harms || err != nil {
		return nil, err
	}
	w := &wire.BadObject{Object: o.ToWire(), State: b.State, Offset: b.Offset, Error: strings.ToValidUTF8(b.Text, "?"), Evicted: o.Tables() > 0}
	i, err := tree.ReadInode(v, o.Inode)
	if kvtx.MoraineKind(err) == moraine.NotFound {
		if !all {
			return nil, nil
		}
		w.Others = w.Evicted
		return w, nil
	}
	if err != nil {
		return nil, err
	}
	path, below, err := tree.PathUnder(v, sc.Root, i.Id)
	if err != nil || !below && !all {
		return nil, err
	}
	f := &wire.LostFile{}
	if _, err := LostRangesOf(v, f, i, func(_ *record.Inode, e moraine.Extent) (bool, error) { return e.Object == o.Id, nil }); err != nil {
		return nil, err
	}
	w.Path, w.Ranges, w.More = path, f.Ranges, f.More
	if all && w.Evicted {
		w.Others = len(f.Ranges) == 0 || o.Tables() > 1
		if !w.Others {
			w.Others, err = sharesTables(v, i)
		}
	}
	return w, err
}

// sharesTables reports whether another file, such as a clone, shares one of this file's tables. It
// inspects only the first tables.
func sharesTables(v *kvtx.View, i *record.Inode) (shared bool, err error) {
	left := record.MaxSharedLook
	err = layout.RefsFrom(v, i.Content, 0, func(r record.Ref) (bool, error) {
		h, err := layout.TableHead(v, r.Table)
		left--
		shared = err == nil && h.Refs > 1
		return !shared && left > 0, err
	})
	return shared, err
}
