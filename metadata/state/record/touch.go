package record

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// Lease returns the inode whose lease covers the inode's attributes, 0 for none.
func (i *Inode) Lease() moraine.InodeID {
	return moraine.InodeID(wire.LeaseOver(uint64(i.Id), uint64(i.Parent), i.Typ == TypeDirectory, i.ManyLinks))
}

// CachedAttr is the inode as clients see it who may cache it: with what tells
// them which lease covers it, and what they need not ask for. It is not used in
// the answers that the state keeps.
func (i *Inode) CachedAttr() *wire.Attr {
	a := i.Attr()
	a.ManyLinks, a.Xattrs = i.ManyLinks, i.Xattrs
	return a
}
