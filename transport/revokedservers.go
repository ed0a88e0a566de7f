package transport

import (
	"fmt"

	"github.com/morainefs/moraine"
)

// Callers treat a server with a revoked certificate like one that does not answer:
// the error is Unavailable, so that they use others. A pool ends its connections as
// soon as it gets the list. It checks again each second, since a connection may
// have been accepted under the previous list.

// SetRevoked implements Dialer. r may be the same as before; it must not change.
func (p *Pool) SetRevoked(r *Revocations) {
	p.revoked.Store(r)
	for _, pr := range p.known() {
		for class := Control; class <= Bulk; class++ {
			for _, c := range pr.open(class) {
				c.checkRevoked()
			}
		}
	}
	p.mu.Lock()
	var streams []*raftConn
	for c := range p.streams {
		streams = append(streams, c)
	}
	p.mu.Unlock()
	for _, c := range streams {
		if err := p.refuses(&c.remote); err != nil {
			p.log.Info("log stream closed", "err", err)
			c.Close() //nolint:errcheck // the log sees that it is gone
		}
	}
}

// refuses returns why no connection to server is allowed, or nil if one is.
func (p *Pool) refuses(server *Peer) error {
	if !p.revoked.Load().Has(server) {
		return nil
	}
	return &moraine.Error{Op: "transport", Ref: server.Node, Kind: moraine.Unavailable,
		Err: fmt.Errorf("the certificate of %s %s was revoked (`moraine cert revoke --list`): the server needs one with another key", server.Role, server.Node)}
}

// checkRevoked ends the connection if its server's certificate was revoked.
func (c *clientConn) checkRevoked() {
	if err := c.pool.refuses(&c.remote); err != nil {
		c.close(err)
	}
}

// holdStream registers a stream of the log until it is closed, unless its server's
// certificate was revoked.
func (p *Pool) holdStream(c *raftConn) error {
	c.drop = func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.streams, c)
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return &moraine.Error{Op: "transport.Pool", Kind: moraine.Unavailable, Err: errShutdown}
	}
	p.streams[c] = struct{}{}
	p.mu.Unlock()
	// Check only now: a list that came before the registration did not see this
	// stream.
	return p.refuses(&c.remote)
}
