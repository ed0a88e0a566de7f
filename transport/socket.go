package transport

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// userTimeout is how long what was sent may stay unacknowledged, or a peer's
// window closed, before the kernel gives a TCP connection up.
const userTimeout = 30 * time.Second

// keepAlive finds peers that vanished while nothing was under way.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 4}

// tune sets the options of a fresh socket. Failures are left: an option that a
// kernel lacks only makes a dead peer be noticed later.
func tune(c net.Conn) {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	t.SetKeepAliveConfig(keepAlive) //nolint:errcheck // see above
	raw, err := t.SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) { //nolint:errcheck // see above
		syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds())) //nolint:errcheck // see above
	})
}
