package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"golang.org/x/sys/unix"
)

// nodeAgent is the agent of this machine as a process, with arenas in a tmpfs.
type nodeAgent struct {
	cmd   *exec.Cmd
	dir   string // of the socket: its path must be short
	arena string
	out   strings.Builder
}

const (
	// sharedMemory is a tmpfs that every Linux has. Its pages are small.
	sharedMemory = "/dev/shm"
	// agentPatience bounds the start of an agent, and its end.
	agentPatience = time.Minute
)

// startAgent starts an agent that gives its trainers so many bytes, and waits until it answers.
func startAgent(ctx context.Context, e *Env, memory int64, flags ...string) (*nodeAgent, error) {
	dir, err := os.MkdirTemp(sharedMemory, "moraine-bench-")
	if err != nil {
		return nil, err
	}
	arena, err := os.MkdirTemp(arenaBase(e.Dir), "arena-")
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	a := &nodeAgent{dir: dir, arena: arena}
	args := append(e.Agent[1:len(e.Agent):len(e.Agent)], "--socket", a.socket(), "--arena-dir", a.arena,
		"--arena-memory", fmt.Sprint(memory))
	a.cmd = exec.CommandContext(ctx, e.Agent[0], append(args, flags...)...)
	a.cmd.Stderr = &a.out
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := a.cmd.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir), os.RemoveAll(arena))
	}
	if err := a.ready(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("bench: the agent did not start: %w", err), a.end())
	}
	return a, nil
}

// arenaBase is where an agent of this user has its arenas as in production: one that may mount makes a
// tmpfs of its own, with huge pages, over a directory of a disk.
func arenaBase(disk string) string {
	if os.Geteuid() != 0 {
		return sharedMemory
	}
	probe, err := os.MkdirTemp(disk, "mount-")
	if err != nil {
		return sharedMemory
	}
	defer os.Remove(probe)
	if unix.Mount("moraine-bench", probe, "tmpfs", 0, "size=4096") != nil {
		return sharedMemory
	}
	_ = unix.Unmount(probe, 0) // nobody knows it yet
	return disk
}

func (a *nodeAgent) socket() string { return filepath.Join(a.dir, "sock") }

// ready waits until the agent answers.
func (a *nodeAgent) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, agentPatience)
	defer cancel()
	for {
		_, err := agentproto.Ask(ctx, a.socket(), &agentproto.Request{Status: &agentproto.Status{}})
		if err == nil {
			return nil
		}
		if sleep(ctx, 10*time.Millisecond) != nil {
			return err
		}
	}
}

// end ends the agent, which first writes what is sealed, and removes its arenas.
func (a *nodeAgent) end() error {
	_ = a.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	kill := time.AfterFunc(agentPatience, func() { _ = a.cmd.Process.Kill() })
	defer kill.Stop()
	err := a.cmd.Wait()
	if err != nil {
		err = fmt.Errorf("bench: the agent: %w\n%s", err, a.out.String())
	}
	if filepath.Dir(a.arena) != sharedMemory {
		// EINVAL: the agent has not come to its mount.
		if umount := unix.Unmount(a.arena, 0); umount != nil && !errors.Is(umount, unix.EINVAL) {
			err = errors.Join(err, fmt.Errorf("bench: unmount %s: %w", a.arena, umount))
		}
	}
	return errors.Join(err, os.RemoveAll(a.dir), os.RemoveAll(a.arena))
}
