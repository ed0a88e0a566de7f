package client

import (
	"context"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

// Xattrs are the extended attributes of inodes. Its methods may be called concurrently.
type Xattrs struct{ c *Client }

// Xattrs returns the extended attributes of the cluster's inodes.
func (c *Client) Xattrs() Xattrs { return Xattrs{c} }

// XattrMode says what Xattrs.Set expects to find.
type XattrMode uint8

const (
	XattrAny     XattrMode = iota
	XattrCreate            // fail with Exists if the attribute exists
	XattrReplace           // fail with NoAttribute if it does not
)

// Set gives an inode an extended attribute. The service bounds them: 255 bytes of name, 64 KiB
// for all values of an inode.
func (x Xattrs) Set(ctx context.Context, inode moraine.InodeID, name string, value []byte, mode XattrMode) error {
	return x.set(ctx, "client.SetXattr", &wire.SetXattr{Inode: uint64(inode), Name: name, Value: value,
		Create: mode == XattrCreate, Replace: mode == XattrReplace})
}

// SetACL gives an inode an access control list of POSIX, in the form that Linux gives to setxattr: name
// is system.posix_acl_access, or system.posix_acl_default of a directory. The mode follows the first.
// clearSetgid takes the setgid bit from the inode: the caller has not its group.
func (x Xattrs) SetACL(ctx context.Context, inode moraine.InodeID, name string, value []byte, clearSetgid bool) error {
	return x.set(ctx, "client.SetACL", &wire.SetXattr{Inode: uint64(inode), Name: name, Value: value, ClearSetgid: clearSetgid})
}

// Remove removes an extended attribute. NoAttribute: there is none.
func (x Xattrs) Remove(ctx context.Context, inode moraine.InodeID, name string) error {
	return x.set(ctx, "client.RemoveXattr", &wire.SetXattr{Inode: uint64(inode), Name: name, Remove: true})
}

func (x Xattrs) set(ctx context.Context, op string, set *wire.SetXattr) error {
	_, err := x.c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_SetXattr{SetXattr: set}})
	return retry.Wrap(op, set.Name, err)
}

// Get returns the value of an extended attribute. NoAttribute: there is none.
func (x Xattrs) Get(ctx context.Context, inode moraine.InodeID, name string) ([]byte, error) {
	if name == "" { // on the wire an empty name requests the list
		return nil, &moraine.Error{Op: "client.GetXattr", Ref: inode.String(), Kind: moraine.InvalidArgument}
	}
	if x.c.meta.HasNoXattrs(inode) {
		return nil, &moraine.Error{Op: "client.GetXattr", Ref: inode.String(), Kind: moraine.NoAttribute}
	}
	r, err := x.get(ctx, "client.GetXattr", inode, name)
	return r.GetValue(), err
}

// List returns the names of an inode's extended attributes, in order.
func (x Xattrs) List(ctx context.Context, inode moraine.InodeID) ([]string, error) {
	if x.c.meta.HasNoXattrs(inode) {
		return nil, nil
	}
	r, err := x.get(ctx, "client.ListXattr", inode, "")
	return r.GetNames(), err
}

func (x Xattrs) get(ctx context.Context, op string, inode moraine.InodeID, name string) (*wire.XattrReply, error) {
	resp, err := x.c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetXattr{GetXattr: &wire.GetXattr{
		Inode: uint64(inode), Name: name}}})
	if err == nil && resp.GetXattr() == nil {
		err = retry.BadReply("get extended attribute")
	}
	if err != nil {
		return nil, retry.Wrap(op, inode.String(), err)
	}
	return resp.GetXattr(), nil
}
