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

// A caller on the host of a server avoids most of the cost of TCP. A server
// with ShortCircuit also listens at a unix socket beside each of its addresses,
// named by that address. Callers in the same network namespace find it there.
// The name is an abstract one (unix(7)). It is visible only within the network
// namespace, like the address, needs no shared directory, and ends with its
// process. A server at the socket must authenticate as over TCP. If that fails,
// the caller uses TCP.
//
// A process of the host may take the name before the server does. It could forward
// the proof and then read the unencrypted bytes after it. On a TCP port that the
// server has taken, that is impossible. In mode crc payloads are unencrypted under
// certificates. There, callers use only a socket of root or of their own user.

// besideAgain is how long a caller does not retry a server's unix sockets after one
// did not answer.
const besideAgain = 30 * time.Second

// shortCircuitName is the unix socket beside a TCP address. An address that stands
// for all addresses of the host has one name in every notation.
func shortCircuitName(ip net.IP, port int) string {
	host := "*"
	if !ip.IsUnspecified() {
		host = ip.String()
	}
	return "@moraine/" + net.JoinHostPort(host, strconv.Itoa(port))
}

// listenShortCircuit opens the unix socket beside l. It returns nil if l is no TCP
// listener or the name is taken: then callers use TCP.
func (s *Server) listenShortCircuit(ctx context.Context, l net.Listener) net.Listener {
	at, ok := l.Addr().(*net.TCPAddr)
	if !ok || !s.cfg.ShortCircuit {
		return nil
	}
	var lc net.ListenConfig
	beside, err := lc.Listen(ctx, "unix", shortCircuitName(at.IP, at.Port))
	if err != nil {
		s.log.Warn("unix socket unavailable", "addr", at.String(), "err", err)
		return nil
	}
	return beside
}

// dialShortCircuit connects to the unix socket beside the TCP address of a server.
// It returns nil if the address belongs to another host, or no permitted process
// listens there.
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
		nc.Close() //nolint:errcheck // a failed close loses nothing
	}
	return nil
}

// credentials are those of the process that listens at the other end of a unix
// socket, or that dialled. They are nil if the kernel does not report them, or nc
// is no unix socket.
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

// remoteAddress is the other end of nc for logs: a dialling unix socket has no
// name.
func remoteAddress(nc net.Conn) string {
	if cred := credentials(nc); cred != nil {
		return fmt.Sprintf("unix socket, process %d of user %d", cred.Pid, cred.Uid)
	}
	return nc.RemoteAddr().String()
}

// ownAddress resolves host:port, and returns nil if that is not an address of this
// network namespace. It sends no packet. When a UDP socket connects, the kernel
// chooses the source address; for an own address that is the address itself.
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
