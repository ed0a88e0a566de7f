package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// agentMemory is the limit of the agent's arenas: three parts of each rank, with room to spare.
	agentMemory = 4 * agentBytes
	sharedDir   = "/dev/shm"
)

// agent is `moraine agent`, a process of its own.
type agent struct {
	dir    string // arenas and socket
	cmd    *exec.Cmd
	ended  <-chan error
	over   bool // the end was received
	stderr *tail
}

func (a *agent) socket() string { return filepath.Join(a.dir, "sock") }

// startAgent returns when trainers can connect. The arenas are in memory if there is a tmpfs with
// room for them, which every user may use; otherwise they are on the disk.
func (d *demo) startAgent(ctx context.Context) (*agent, error) {
	base, onDisk := sharedDir, false
	var st unix.Statfs_t
	if err := unix.Statfs(base, &st); err != nil || st.Type != unix.TMPFS_MAGIC || st.Bavail*uint64(st.Bsize) < agentMemory {
		base, onDisk = "", true
	}
	dir, err := os.MkdirTemp(base, "moraine-demo-")
	if err != nil {
		return nil, err
	}
	a := &agent{dir: dir, stderr: &tail{}}
	a.cmd = exec.Command(d.cfg.Binary, "agent", "--socket", a.socket(), "--arena-dir", filepath.Join(dir, "arenas"),
		"--arena-on-disk="+strconv.FormatBool(onDisk), "--arena-memory", strconv.Itoa(agentMemory),
		"--endpoint", d.cluster.Endpoint(), "--certs", d.cluster.Certs(), "--identity", "client", "--mode", d.cluster.Mode(), "--log-level", "warn")
	a.cmd.Stderr = a.stderr
	if a.ended, err = begin(a.cmd, syscall.SIGKILL); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := a.ready(ctx); err != nil {
		return nil, errors.Join(err, a.stop())
	}
	d.cfg.Say("  moraine agent has its arenas in %s", dir)
	return a, nil
}

// ready waits for the socket.
func (a *agent) ready(ctx context.Context) error {
	return until(ctx, "moraine agent starts", poll, func(context.Context) (bool, error) {
		if _, err := os.Stat(a.socket()); err == nil {
			return true, nil
		}
		select {
		case err := <-a.ended:
			a.over = true
			return false, errors.Join(fmt.Errorf("moraine agent ended: %s", a.stderr), err)
		default:
			return false, nil
		}
	})
}

// stop ends the agent, cleanly if possible, and removes its arenas. On SIGTERM the agent writes what
// is sealed first.
func (a *agent) stop() (err error) {
	if a.over {
		return os.RemoveAll(a.dir)
	}
	_ = a.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case err = <-a.ended:
	case <-time.After(stopPatience):
		_ = a.cmd.Process.Kill()
		err = errors.Join(fmt.Errorf("moraine agent did not end within %v", stopPatience), <-a.ended)
	}
	if err != nil {
		err = fmt.Errorf("moraine agent: %w: %s", err, a.stderr)
	}
	return errors.Join(err, os.RemoveAll(a.dir))
}
