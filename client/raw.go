package client

import (
	"context"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/session"
	"github.com/morainefs/moraine/client/internal/stripeio"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

// raw implements rawclient.Client: the session makes the requests, and the engine moves the stripes.
type raw struct {
	*stripeio.Engine
	meta *session.Conn
}

func (r raw) Meta(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	return r.meta.Do(ctx, req)
}

func (r raw) HasNoXattrs(inode moraine.InodeID) bool { return r.meta.HasNoXattrs(inode) }

func (r raw) OnLost(drop func(ctx context.Context, inodes []moraine.InodeID)) { r.meta.OnLost(drop) }

func (r raw) Leases() bool { return r.meta.Leases() }

func (r raw) Keep(inode moraine.InodeID) (rawclient.Kept, bool) {
	k, ok := r.meta.Keep(inode)
	return rawclient.Kept(k), ok
}

func (r raw) AwaitDropped(ctx context.Context) bool { return r.meta.AwaitDropped(ctx) }

// raw is how the other packages of this module reach the messages of the protocol. A struct that embeds
// a client has it too.
func (c *Client) raw() rawclient.Client { return raw{c.io, c.meta} }

func init() {
	rawclient.Provide(func(c rawclient.Opened) rawclient.Client {
		return c.(interface{ raw() rawclient.Client }).raw()
	})
}
