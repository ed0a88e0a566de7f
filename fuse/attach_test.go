package fuse_test

import (
	"errors"
	"fmt"
	"os/exec"
	"testing"

	"github.com/morainefs/moraine/fuse"
	"golang.org/x/sys/unix"
)

// TestAnAbortedMountFailsItsCalls: a mount has no daemon, and its connection stays open. After Abort
// the calls on it fail, and what is below its directory does not appear.
func TestAnAbortedMountFailsItsCalls(t *testing.T) {
	t.Parallel()
	requireFuse(t)
	child(t, "attach-abort", t.TempDir()) // Attach is for a process without other mounts
}

func attachAbort(args []string) (err error) {
	dir := args[0]
	a, err := fuse.Attach(fuse.Config{Dir: dir, Name: "aborted"}, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fuse.Detach(dir), a.Abort()) }() // the second Abort does nothing
	waiting := exec.Command("stat", "-f", dir)
	if err := waiting.Start(); err != nil {
		return err
	}
	connection, err := a.Connect()
	if err != nil {
		return err
	}
	defer connection.Close()
	// The kernel has a request: the call waits.
	if _, err := unix.Poll([]unix.PollFd{{Fd: int32(connection.Fd()), Events: unix.POLLIN}}, -1); err != nil {
		return err
	}
	if err := a.Abort(); err != nil {
		return err
	}
	if err := waiting.Wait(); err == nil {
		return errors.New("the call that waited did not fail")
	}
	if !fuse.IsDead(dir) {
		return errors.New("a call after Abort did not fail with ENOTCONN")
	}
	if m, err := fuse.MountOf(dir); err != nil || m.Dir != dir {
		return fmt.Errorf("the mount is not there: %+v, %w", m, err)
	}
	return nil
}
