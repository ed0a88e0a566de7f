package transport

import (
	"context"
	"net"
)

// Probe opens a new connection of class Control to one address of a server,
// like a caller without a connection, and closes it again. It covers TLS, if
// the mode has it, both certificates, and the hello. It returns nil if the
// server accepted the connection and is node. It uses no connection of the
// pool, and no unix socket, so its result holds for every caller that may use
// the address.
func (p *Pool) Probe(ctx context.Context, role Role, node, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.DialTimeout)
	defer cancel()
	if p.id != nil && p.cfg.Mode != Insecure {
		if err := p.id.Check(p.clock.Now()); err != nil {
			return err
		}
	}
	network, address := splitAddress(addr)
	var dialer net.Dialer
	nc, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return lost(addr, err)
	}
	tune(nc)
	g, err := newPeer(p, "", role, node, []string{addr}).greetOn(ctx, nc, Control, addr, nil)
	if err != nil {
		return err
	}
	return g.stream.Close()
}
