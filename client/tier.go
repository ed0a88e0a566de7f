package client

import (
	"context"

	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

// Tier describes the object tier as a whole.
func (c *Client) Tier(ctx context.Context) (*wire.TierReply, error) {
	resp, err := c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetTier{GetTier: &wire.GetTier{}}})
	if err == nil && resp.GetTier() == nil {
		err = retry.BadReply("get tier")
	}
	return resp.GetTier(), retry.Wrap("client.Tier", "", err)
}
