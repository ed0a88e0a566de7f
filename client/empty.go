package client

import (
	"context"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// CreateEmpty makes an empty file, visible at once, in a directory named by its
// number. It fails with Exists where the name is taken.
func (c *Client) CreateEmpty(ctx context.Context, parent moraine.InodeID, name string, mode uint32) (*wire.Attr, error) {
	resp, err := c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{
		Parent: uint64(parent), Name: name, Type: wire.FileType_FILE_TYPE_REGULAR, Mode: mode, Exclusive: true}}})
	return entryOf(resp, err, "client.CreateEmpty", name)
}
