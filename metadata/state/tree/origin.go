package tree

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// Above returns a directory and all directories above it, up to the root.
func Above(v *kvtx.View, at moraine.InodeID) (all []moraine.InodeID, err error) {
	for at != 0 && len(all) <= kvtx.MaxDepth {
		all = append(all, at)
		dir, err := Ancestor(v, at)
		if err != nil {
			return nil, err
		}
		at = dir.Parent
	}
	return all, nil
}

// SharedTail returns the common end of two lists.
func SharedTail(a, b []moraine.InodeID) []moraine.InodeID {
	n := 0
	for n < min(len(a), len(b)) && a[len(a)-1-n] == b[len(b)-1-n] {
		n++
	}
	return a[len(a)-n:]
}

// LimitReads marks in a page of extents the stripes that the caller may not read whole. stripes are
// those of the page, in its order.
func LimitReads(v *kvtx.View, sc kvtx.Scope, i *record.Inode, stripes []*moraine.Stripe, reply *wire.ExtentsReply) error {
	if sc.Root == v.K.Top() {
		return nil
	}
	inside := map[moraine.InodeID]bool{i.Id: true}
	for n, s := range stripes {
		in, known := inside[s.Origin]
		if !known {
			var err error
			if in, err = MayName(v, sc, s.Origin); err != nil {
				return err
			}
			inside[s.Origin] = in
		}
		if !in && !namesAll(reply.Extents, s) {
			reply.Limited = append(reply.Limited, uint64(s.ID))
			reply.Stripes[n].LiveBytes, reply.Stripes[n].RefCount = 0, 0 // these counts would reveal other files
		}
	}
	return nil
}

// MayName reports whether an inode exists in the scope.
func MayName(v *kvtx.View, sc kvtx.Scope, id moraine.InodeID) (bool, error) {
	i, err := ReadInode(v, id)
	if kvtx.MoraineKind(err) == moraine.NotFound {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return InScope(v, sc, i)
}

// namesAll reports whether extents of a file, in its order, refer to all of a stripe.
func namesAll(extents []*wire.Extent, s *moraine.Stripe) bool {
	to := uint64(0)
	for _, e := range extents {
		if e.Stripe == uint64(s.ID) && e.StripeOffset <= to {
			to = max(to, e.StripeOffset+e.Length)
		}
	}
	return to >= uint64(s.Length)
}
