package mountcmd

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestOnlyTheOwnerReachesTheControlSocket: a connection of another user is closed before a byte of it
// is read. That of the user who mounted is accepted.
func TestOnlyTheOwnerReachesTheControlSocket(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	dir, err := os.MkdirTemp("", "moraine-control-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	file := filepath.Join(dir, "socket")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: file, Net: "unix"})
	require.NoError(t, err)
	require.NoError(t, os.Chmod(file, 0o777))
	accepted := make(chan net.Conn)
	go func() {
		defer close(accepted)
		for {
			c, err := ownersOnly{l}.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread, which is another user's, ends with this
		ended <- readAs(54321, file)
	}()
	require.NoError(t, <-ended)
	own, err := net.Dial("unix", file)
	require.NoError(t, err)
	c := <-accepted
	uid, err := peer(c.(*net.UnixConn))
	require.NoError(t, err)
	require.Zero(t, uid, "the first that was accepted is the owner's")
	require.NoError(t, errors.Join(own.Close(), c.Close(), l.Close()))
	_, more := <-accepted
	require.False(t, more)
}

// readAs makes this thread another user's, connects, and fails unless the other end closes.
func readAs(uid uintptr, file string) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid); errno != 0 {
		return errno
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: file}); err != nil {
		return err
	}
	n, err := unix.Read(fd, make([]byte, 1))
	if n > 0 || err != nil && !errors.Is(err, unix.ECONNRESET) {
		return errors.Join(errors.New("the connection was not closed"), err)
	}
	return nil
}

// TestControlFileIsShort: the kernel limits the name of a socket, but not that of a directory.
func TestControlFileIsShort(t *testing.T) {
	long := controlFile("/run/user/1000/moraine", "/"+strings.Repeat("long/", 200))
	require.Less(t, len(long), 100)
	require.NotEqual(t, long, controlFile("/run/user/1000/moraine", "/"+strings.Repeat("long/", 201)))
}
