package fuse

import (
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/morainefs/moraine/client"
)

// An ID that programs use here may belong to another in the cluster (Config.IDs). Nothing can be
// made under it, as with the mounts of Linux that map IDs.
const otherOwner = gofuse.Status(syscall.EOVERFLOW)

// shownOwner is the owner of an inode, as programs see it.
func (c *calls) shownOwner(a client.Attr) gofuse.Owner {
	return gofuse.Owner{Uid: c.ids.Users.Owner(a.UID()), Gid: c.ids.Groups.Owner(a.GID())}
}

// made gives the options of a new entry its owner in the cluster: the caller of a request.
func (c *calls) made(by gofuse.Owner, opts *client.NodeOptions) gofuse.Status {
	var users, groups bool
	opts.UID, users = c.ids.Users.Cluster(by.Uid)
	opts.GID, groups = c.ids.Groups.Cluster(by.Gid)
	if !users || !groups {
		return otherOwner
	}
	return gofuse.OK
}

// chown returns a request with the IDs of the cluster. Where all files appear with one owner, a
// request for that owner changes none, and one for another is not permitted.
func (c *calls) chown(in *gofuse.SetAttrIn) (gofuse.SetAttrIn, gofuse.Status) {
	out := *in
	for _, x := range []struct {
		ids interface {
			Shown() (uint32, bool)
			Cluster(uint32) (uint32, bool)
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
		var ok bool
		if *x.id, ok = x.ids.Cluster(*x.id); !ok {
			return out, otherOwner
		}
	}
	return out, gofuse.OK
}
