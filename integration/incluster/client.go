package incluster

import (
	"context"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport"
)

// Client is a client on a machine of its own.
type Client struct {
	*client.Client
	c      *Cluster
	node   string
	dialer transport.Dialer
}

// Client opens a client whose certificate names node; no two concurrent clients
// share one. Its files have chunks of 64 KiB, so that little data makes many
// stripes.
func (c *Cluster) Client(ctx context.Context, node string) (*Client, error) {
	return c.ClientWith(ctx, node, client.Config{})
}

// ClientWith is Client with settings; a zero means that of Client.
func (c *Cluster) ClientWith(ctx context.Context, node string, cfg client.Config) (*Client, error) {
	return c.dial(ctx, transport.RoleClient, node, cfg, nil)
}

// ClientOver is ClientWith whose requests pass through wrap of the network.
func (c *Cluster) ClientOver(ctx context.Context, node string, cfg client.Config, wrap func(transport.Dialer) transport.Dialer) (*Client, error) {
	return c.dial(ctx, transport.RoleClient, node, cfg, wrap)
}

// Admin is Client with the certificate of an administrator.
func (c *Cluster) Admin(ctx context.Context, node string) (*Client, error) {
	return c.dial(ctx, transport.RoleAdmin, node, client.Config{}, nil)
}

func (c *Cluster) dial(ctx context.Context, role transport.Role, node string, cfg client.Config,
	wrap func(transport.Dialer) transport.Dialer) (*Client, error) {
	def(&cfg.ChunkBytes, 64<<10)
	def(&cfg.MemoryBytes, 16<<20)
	cfg.Metadata = c.addresses()
	return c.dialOver(ctx, c.Dialer(role, node), node, cfg, wrap)
}

// ClientAs is ClientWith for a client with the certificate of peer, whose Cluster
// is filled in.
func (c *Cluster) ClientAs(ctx context.Context, peer transport.Peer, cfg client.Config) (*Client, error) {
	return c.ClientAsOver(ctx, peer, cfg, nil)
}

// ClientAsOver is ClientAs and ClientOver.
func (c *Cluster) ClientAsOver(ctx context.Context, peer transport.Peer, cfg client.Config, wrap func(transport.Dialer) transport.Dialer) (*Client, error) {
	def(&cfg.ChunkBytes, 64<<10)
	def(&cfg.MemoryBytes, 16<<20)
	cfg.Metadata = c.addresses()
	return c.dialOver(ctx, c.DialerAs(peer), peer.Node, cfg, wrap)
}

// DialerAs is the network for a process with the certificate of peer; the caller
// closes it.
func (c *Cluster) DialerAs(peer transport.Peer) transport.Dialer {
	peer.Cluster = clusterID
	return c.Net.Dialer(peer)
}

func (c *Cluster) dialOver(ctx context.Context, d transport.Dialer, node string, cfg client.Config,
	wrap func(transport.Dialer) transport.Dialer) (*Client, error) {
	if wrap != nil {
		d = wrap(d)
	}
	deps := client.Deps{Dialer: d, Log: c.opts.Log.With("node", node), Metrics: c.Metrics.client()}
	if c.opts.Clock != nil {
		deps.Clock = c.opts.Clock(node)
	}
	cl, err := client.Dial(ctx, cfg, deps)
	if err != nil {
		d.Close()
		return nil, err
	}
	return &Client{Client: cl, c: c, node: node, dialer: d}, nil
}

// Dialer is the network for a process of that role and name; the caller closes it.
func (c *Cluster) Dialer(role transport.Role, node string) transport.Dialer {
	return c.Net.Dialer(transport.Peer{Cluster: clusterID, Role: role, Node: node, Scope: "/"})
}

// Close ends the client and its session.
func (c *Client) Close() error {
	err := c.Client.Close()
	c.dialer.Close()
	return err
}

// Cut disconnects the client at once and for good. Kill, which waits for the client, may follow.
func (c *Client) Cut() { c.dialer.Close() }

// Kill ends the client without notice to the cluster, where its session then
// expires. Its calls must have ended.
func (c *Client) Kill() {
	c.dialer.Close()
	c.Client.Close() //nolint:errcheck // it cannot reach anybody
}
