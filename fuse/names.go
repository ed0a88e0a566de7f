package fuse

import (
	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
)

// What the kernel may answer by itself. Only answers that read something lend: a directory or
// file that just changed is not lent, and the kernel drops what the answer to a change replaces.

// lendEntry fills in for how long the kernel may answer an entry that was looked up or listed.
// Attributes of a file that is open here are not lent: each of its stats refreshes the open file,
// and only the open file knows the bytes that are not committed yet.
func (o *openFiles) lendEntry(dir moraine.InodeID, name string, a client.Attr, out *gofuse.EntryOut) {
	o.prefetches.saw(name, a)
	entry, attr := o.loans.Entry(dir, name, a)
	out.SetEntryTimeout(entry)
	if o.files.of(a.Inode()) == nil {
		out.SetAttrTimeout(attr)
	}
}

// lendAttr is lendEntry for attributes alone. The kernel has those of a file for longer while it
// keeps the file's pages: it drops both together.
func (o *openFiles) lendAttr(a client.Attr, out *gofuse.AttrOut) {
	if d := o.trust(a); d > 0 {
		out.SetTimeout(d)
	} else if o.files.of(a.Inode()) == nil {
		out.SetTimeout(o.loans.Attr(a))
	}
}

// missing answers the lookup of a name that does not exist. If that is lent, the answer has no
// node and a time.
func (o *openFiles) missing(dir moraine.InodeID, name string, out *gofuse.EntryOut) gofuse.Status {
	entry, _ := o.loans.Entry(dir, name, client.Attr{})
	if entry == 0 {
		return gofuse.ENOENT
	}
	*out = gofuse.EntryOut{}
	out.SetEntryTimeout(entry)
	return gofuse.OK
}

// forget makes the kernel forget the attributes of an inode, and not take those of answers on
// their way. The kernel takes no lock for that which a call may hold that waits for the mount.
func (c *calls) forget(inode moraine.InodeID) bool {
	s := c.server.Load()
	return s != nil && s.InodeNotify(c.node(uint64(inode)), attrOnly, 0).Ok()
}

// attrOnly is the offset that leaves the pages of an inode alone.
const attrOnly = -1
