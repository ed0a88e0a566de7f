package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"github.com/morainefs/moraine"
)

// How an agent claims its node: the lock of the arenas, and the socket.

// lockDir keeps other agents from the directory of the arenas, until the file is closed or the
// process ends.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock(f); err != nil {
		_ = f.Close() // the lock is what failed
		return nil, &moraine.Error{Op: "agent", Ref: dir, Kind: moraine.Busy,
			Err: fmt.Errorf("another agent has the arenas in %s: a node has one agent", dir)}
	}
	return f, nil
}

// listen makes the socket, and replaces one that nobody serves. Everybody may connect; the agent
// compares the peer's user.
func listen(path string) (*net.UnixListener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if err := removeSocket(path); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o666); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// removeSocket removes the socket of an agent that has ended. It fails with Busy if an agent with
// other arenas serves it.
func removeSocket(path string) error {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case st.Mode().Type() != fs.ModeSocket:
		return &moraine.Error{Op: "agent", Ref: path, Kind: moraine.Exists, Err: errors.New("it is not a socket: name another path with --socket")}
	}
	if c, err := net.Dial("unix", path); err == nil {
		_ = c.Close() // it was only a probe
		return &moraine.Error{Op: "agent", Ref: path, Kind: moraine.Busy, Err: errors.New("another agent serves this socket: a node has one agent")}
	}
	return os.Remove(path)
}
