package demo

import (
	"bytes"
	"context"
	"os/exec"
	"runtime"
	"syscall"
)

// child runs a command to its end and returns its output; with an error, its error
// output. It ends with ctx, and with this process.
func child(ctx context.Context, name string, args ...string) ([]byte, error) {
	var out, complaints bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &out, &complaints
	ended, err := begin(cmd, syscall.SIGKILL)
	if err == nil {
		err = <-ended
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return append(out.Bytes(), complaints.Bytes()...), err
	}
	return out.Bytes(), nil
}

// begin starts a command; the channel gets its result. It gets a signal when this
// process ends before it, however that ends.
func begin(cmd *exec.Cmd, sig syscall.Signal) (<-chan error, error) {
	started, ended := make(chan error), make(chan error, 1)
	// Not in the group of this process: Ctrl-C is for this process, which ends the
	// others in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: sig}
	go func() {
		// The signal is sent when the thread that forked ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	return ended, <-started
}
