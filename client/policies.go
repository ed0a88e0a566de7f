package client

import (
	"context"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

// Policies say how the files below directories are stored. Its methods may be called
// concurrently.
type Policies struct{ c *Client }

// Policies returns the policies of the cluster's directories.
func (c *Client) Policies() Policies { return Policies{c} }

// Set makes policy a directory's own. An empty policy removes it, so that the directory
// inherits.
func (p Policies) Set(ctx context.Context, dir moraine.InodeID, policy *wire.Policy) error {
	_, err := p.c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_SetPolicy{SetPolicy: &wire.SetPolicy{
		Inode: uint64(dir), Policy: policy}}})
	return retry.Wrap("client.SetPolicy", dir.String(), err)
}

// Get returns an inode's own policy and the one in effect for it.
func (p Policies) Get(ctx context.Context, inode moraine.InodeID) (*wire.PolicyReply, error) {
	reply, err := p.c.io.GetPolicy(ctx, inode)
	return reply, retry.Wrap("client.GetPolicy", inode.String(), err)
}
