package fuse

import (
	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/morainefs/moraine/client"
)

// shownOwner is the owner of an inode, as programs see it.
func (c *calls) shownOwner(a client.Attr) gofuse.Owner {
	return gofuse.Owner{Uid: c.ids.Users.Owner(a.UID()), Gid: c.ids.Groups.Owner(a.GID())}
}

// made gives the options of a new entry its owner in the cluster: the caller of a request.
func (c *calls) made(by gofuse.Owner, opts *client.NodeOptions) {
	opts.UID, opts.GID = c.ids.Users.Cluster(by.Uid), c.ids.Groups.Cluster(by.Gid)
}

// chown returns a request with the IDs of the cluster. Where all files appear with one owner, a
// request for that owner changes none, and one for another is not permitted.
func (c *calls) chown(in *gofuse.SetAttrIn) (gofuse.SetAttrIn, gofuse.Status) {
	out := *in
	for _, x := range []struct {
		ids interface {
			Shown() (uint32, bool)
			Cluster(uint32) uint32
		}
		bit uint32
		id  *uint32
	}{{&c.ids.Users, gofuse.FATTR_UID, &out.Owner.Uid}, {&c.ids.Groups, gofuse.FATTR_GID, &out.Owner.Gid}} {
		if in.Valid&x.bit == 0 {
			continue
		}
		if shown, all := x.ids.Shown(); all {
			if *x.id != shown {
				return out, gofuse.EPERM
			}
			out.Valid &^= x.bit
			continue
		}
		*x.id = x.ids.Cluster(*x.id)
	}
	return out, gofuse.OK
}
