package agent

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// peerUser returns the user of the process at the other end of a unix socket.
func peerUser(c *net.UnixConn) (uint32, error) {
	cred, err := peer(c)
	if err != nil {
		return 0, err
	}
	return cred.Uid, nil
}

// peerGroup returns the group of that process. If the kernel does not say, it is that of nobody.
func peerGroup(c *net.UnixConn) uint32 {
	const nobody = 65534
	cred, err := peer(c)
	if err != nil {
		return nobody
	}
	return cred.Gid
}

func peer(c *net.UnixConn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, err
	}
	return cred, credErr
}

// flock takes the lock of a file, or fails at once.
func flock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }
