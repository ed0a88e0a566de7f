package transport

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// userTimeout is how long sent data may stay unacknowledged, or a peer's window
// closed, before the kernel ends a TCP connection.
const userTimeout = 30 * time.Second

// keepAlive detects peers that vanished while the connection was idle.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 4}

// tune sets the options of a new socket. It ignores failures: a missing kernel
// option only delays the detection of a dead peer.
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
