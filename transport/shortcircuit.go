package transport

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A caller on the host of a server saves most of TCP: beside each address that a
// server with ShortCircuit listens at, it listens at a unix socket that is named
// by that address, and callers in the same network namespace find it there. The
// name is an abstract one (unix(7)): it is seen within the network namespace
// alone, as the address is, needs no directory that both sides share, and goes
// with its process. Whoever answers there has to prove who he is as over TCP, and
// where nobody can, the caller takes TCP.
//
// A process of the host that took the name before the server did can hand the proof on
// and read what follows it in clear, which it could not do with a port that is taken. So
// where payloads go in clear under certificates (mode crc), only a socket of root or of
// the caller's own user is talked to.

// besideAgain is how long a caller does not try a server's unix sockets again after one
// at which nobody answered.
const besideAgain = 30 * time.Second

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
// server, nil where the address is another host's or nobody listens there who may.
func dialShortCircuit(ctx context.Context, address string, mode Mode) net.Conn {
	at := ownAddress(ctx, address)
	if at == nil {
		return nil
	}
	var d net.Dialer
	for _, ip := range []net.IP{at.IP, net.IPv6unspecified} {
		nc, err := d.DialContext(ctx, "unix", shortCircuitName(ip, at.Port))
		if err != nil {
			continue
		}
		if cred := credentials(nc); mode != CRC || cred != nil && (cred.Uid == 0 || int(cred.Uid) == os.Geteuid()) {
			return nc
		}
		nc.Close() //nolint:errcheck // nothing was said on it
	}
	return nil
}

// credentials are those of the process that listens at the other end of a unix socket,
// as it began to, or that dialed; nil where the kernel does not tell, or nc is none.
func credentials(nc net.Conn) *unix.Ucred {
	u, ok := nc.(*net.UnixConn)
	if !ok {
		return nil
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nil
	}
	var cred *unix.Ucred
	if raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }) != nil || err != nil {
		return nil
	}
	return cred
}

// remoteAddress is what logs call the other end of nc: a unix socket that was dialed
// from has no name.
func remoteAddress(nc net.Conn) string {
	if cred := credentials(nc); cred != nil {
		return fmt.Sprintf("unix socket, process %d of user %d", cred.Pid, cred.Uid)
	}
	return nc.RemoteAddr().String()
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
