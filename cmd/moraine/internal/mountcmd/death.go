package mountcmd

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A dead daemon may not end. One of its threads may wait in the kernel for the answer to a request:
// one that drops pages of a file waits for the read that fills them. Only the next daemon answers that.

// errRemains is how a daemon ended that a thread outlives.
var errRemains = errors.New("it is dead, and a thread of it still waits in the kernel")

// deathLook is the time between two looks at a daemon. Two find the same before it counts as dead.
const deathLook = 500 * time.Millisecond

// awaitDeath returns how a process has ended, when it has ended or only threads remain that wait in
// the kernel. Such a process runs no instruction of its own, and takes no request of the kernel.
// proc is its directory below /proc; nil: it is not looked at.
func awaitDeath(proc *os.Root, wait func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- wait() }() // it ends when the last thread does
	if proc == nil {
		return <-ended
	}
	defer proc.Close()
	look := time.NewTicker(deathLook)
	defer look.Stop()
	buf := make([]byte, 4096)
	for before := false; ; {
		select {
		case err := <-ended:
			return err
		case <-look.C:
		}
		now := remains(proc, buf)
		if now && before {
			return errRemains
		}
		before = now
	}
}

// remains reports whether a process is dead, and has threads that all sleep and cannot be woken.
func remains(proc *os.Root, buf []byte) bool {
	leader, err := readThread(proc, "status", buf)
	if err != nil || !leader.dead() {
		return false
	}
	dir, err := proc.Open("task")
	if err != nil {
		return false
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return false
	}
	left := 0
	for _, name := range names {
		th, err := readThread(proc, "task/"+name+"/status", buf)
		switch {
		case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ESRCH), err == nil && th.ended():
		case err != nil, th.state != 'D':
			return false
		default:
			left++
		}
	}
	return left > 0
}

// thread is what the kernel says of one.
type thread struct {
	state   byte   // the letter of proc(5)
	pending uint64 // signals for this thread alone
}

// ended reports whether the thread is a zombie.
func (t thread) ended() bool { return t.state == 'Z' || t.state == 'X' }

// dead reports whether the thread has ended, or will before its next instruction: the end of a
// process sends each thread SIGKILL.
func (t thread) dead() bool { return t.ended() || t.pending&(1<<(unix.SIGKILL-1)) != 0 }

func readThread(proc *os.Root, name string, buf []byte) (t thread, err error) {
	f, err := proc.Open(name)
	if err != nil {
		return t, err
	}
	defer f.Close()
	n, err := f.Read(buf)
	if err != nil {
		return t, err
	}
	return parseThread(buf[:n])
}

// parseThread parses a file /proc/PID/status.
func parseThread(text []byte) (t thread, err error) {
	for line := range bytes.Lines(text) {
		key, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(":\t"))
		switch string(key) {
		case "State":
			if len(value) > 0 {
				t.state = value[0]
			}
		case "SigPnd":
			t.pending, err = strconv.ParseUint(string(value), 16, 64)
			return t, err
		}
	}
	return t, fmt.Errorf("the state of a thread: no SigPnd in %q", text)
}
