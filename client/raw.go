package client

import (
	"github.com/morainefs/moraine/client/internal/raw"
	"github.com/morainefs/moraine/client/internal/stripeio"
)

// Users of the library need nothing of this file. It is how the other packages of this module
// reach the messages of the protocol.

// Raw returns the requests and the work on stripes in messages of the protocol, under the
// client's session. It is for the other packages of this module: movers, the commands of
// operators, and tests. Programs do not need it, and it may change with every release.
func (c *Client) Raw() raw.Client { return raw.New(c.meta, c.io) }

// Rewritten counts what the mover's RewriteStripes put into new stripes.
type Rewritten = stripeio.Rewritten
