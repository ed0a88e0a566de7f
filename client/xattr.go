package client

import (
	"context"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

// XattrMode says what SetXattr expects to find.
type XattrMode uint8

const (
	XattrAny     XattrMode = iota
	XattrCreate            // fail with Exists where the attribute is there
	XattrReplace           // fail with NoAttribute where it is not
)

// SetXattr gives an inode an extended attribute. The bounds are the service's:
// 255 bytes of name, 64 KiB for all values of an inode.
func (c *Client) SetXattr(ctx context.Context, inode moraine.InodeID, name string, value []byte, mode XattrMode) error {
	return c.setXattr(ctx, "client.SetXattr", &wire.SetXattr{Inode: uint64(inode), Name: name, Value: value,
		Create: mode == XattrCreate, Replace: mode == XattrReplace})
}

// RemoveXattr removes an extended attribute; NoAttribute where there is none.
func (c *Client) RemoveXattr(ctx context.Context, inode moraine.InodeID, name string) error {
	return c.setXattr(ctx, "client.RemoveXattr", &wire.SetXattr{Inode: uint64(inode), Name: name, Remove: true})
}

func (c *Client) setXattr(ctx context.Context, op string, set *wire.SetXattr) error {
	_, err := c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_SetXattr{SetXattr: set}})
	return retry.Wrap(op, set.Name, err)
}

// GetXattr returns the value of an extended attribute; NoAttribute where there
// is none.
func (c *Client) GetXattr(ctx context.Context, inode moraine.InodeID, name string) ([]byte, error) {
	if name == "" { // on the wire it would ask for the list
		return nil, &moraine.Error{Op: "client.GetXattr", Ref: inode.String(), Kind: moraine.InvalidArgument}
	}
	if c.meta.HasNoXattrs(inode) {
		return nil, &moraine.Error{Op: "client.GetXattr", Ref: inode.String(), Kind: moraine.NoAttribute}
	}
	r, err := c.getXattr(ctx, "client.GetXattr", inode, name)
	return r.GetValue(), err
}

// ListXattr returns the names of an inode's extended attributes, in order.
func (c *Client) ListXattr(ctx context.Context, inode moraine.InodeID) ([]string, error) {
	if c.meta.HasNoXattrs(inode) {
		return nil, nil
	}
	r, err := c.getXattr(ctx, "client.ListXattr", inode, "")
	return r.GetNames(), err
}

func (c *Client) getXattr(ctx context.Context, op string, inode moraine.InodeID, name string) (*wire.XattrReply, error) {
	resp, err := c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetXattr{GetXattr: &wire.GetXattr{
		Inode: uint64(inode), Name: name}}})
	if err == nil && resp.GetXattr() == nil {
		err = retry.BadReply("get extended attribute")
	}
	if err != nil {
		return nil, retry.Wrap(op, inode.String(), err)
	}
	return resp.GetXattr(), nil
}
