package transport

import (
	"context"
	"net"
	"strconv"
)

// A caller on the host of a server saves most of TCP: beside each address that a
// server with ShortCircuit listens at, it listens at a unix socket that is named
// by that address, and callers in the same network namespace find it there. The
// name is an abstract one (unix(7)): it is seen within the network namespace
// alone, as the address is, needs no directory that both sides share, and goes
// with its process. Whoever answers there has to prove who he is as over TCP, and
// where nobody can, the caller takes TCP.

// shortCircuitName is the unix socket beside a TCP address. One that stands for
// every address of the host has one name, however it was written.
func shortCircuitName(ip net.IP, port int) string {
	host := "*"
	if !ip.IsUnspecified() {
		host = ip.String()
	}
	return "@moraine/" + net.JoinHostPort(host, strconv.Itoa(port))
}

// listenShortCircuit opens the unix socket beside l, nil where l is no TCP
// listener or the name is taken: then callers go on over TCP.
func (s *Server) listenShortCircuit(ctx context.Context, l net.Listener) net.Listener {
	at, ok := l.Addr().(*net.TCPAddr)
	if !ok || !s.cfg.ShortCircuit {
		return nil
	}
	var lc net.ListenConfig
	beside, err := lc.Listen(ctx, "unix", shortCircuitName(at.IP, at.Port))
	if err != nil {
		s.log.Warn("callers on this host have to use TCP", "addr", at.String(), "err", err)
		return nil
	}
	return beside
}

// dialShortCircuit connects to the unix socket beside the TCP address of a
// server, nil where the address is another host's or nobody listens there.
func dialShortCircuit(ctx context.Context, address string) net.Conn {
	at := ownAddress(ctx, address)
	if at == nil {
		return nil
	}
	var d net.Dialer
	for _, ip := range []net.IP{at.IP, net.IPv6unspecified} {
		if nc, err := d.DialContext(ctx, "unix", shortCircuitName(ip, at.Port)); err == nil {
			return nc
		}
	}
	return nil
}

// ownAddress resolves host:port, and returns nil where that is not an address of
// this network namespace. No packet is sent: connecting a UDP socket has the
// kernel choose what it would send from, and that is the address itself where it
// is its own.
func ownAddress(ctx context.Context, address string) *net.UDPAddr {
	var d net.Dialer
	probe, err := d.DialContext(ctx, "udp", address)
	if err != nil {
		return nil
	}
	defer probe.Close() //nolint:errcheck // nothing was sent on it
	to, from := probe.RemoteAddr().(*net.UDPAddr), probe.LocalAddr().(*net.UDPAddr)
	if !to.IP.IsLoopback() && !to.IP.Equal(from.IP) {
		return nil
	}
	return to
}
