package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/morainefs/moraine/fuse"
)

// mount is the cluster's root, mounted by a process of its own.
type mount struct {
	dir    string
	cmd    *exec.Cmd
	ended  <-chan error
	stderr *tail
}

// startMount returns when the mount can be used.
func (d *demo) startMount(ctx context.Context) (*mount, error) {
	dir, err := filepath.Abs(filepath.Join(d.cfg.Dir, "mount"))
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	m := &mount{dir: dir, stderr: &tail{}, cmd: exec.Command(d.cfg.Binary, "mount", "moraine:///", dir, "--foreground",
		"--endpoint", d.cluster.Endpoint(), "--certs", d.cluster.Certs(), "--identity", "admin", "--mode", d.cluster.Mode(), "--log-level", "warn")}
	m.cmd.Stderr = m.stderr
	// On SIGTERM it unmounts; after SIGKILL it could not.
	if m.ended, err = begin(m.cmd, syscall.SIGTERM); err != nil {
		return nil, err
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if mounted, err := fuse.IsMounted(dir); err != nil || mounted {
			return m, err
		}
		select {
		case err := <-m.ended:
			return nil, fmt.Errorf("moraine mount ended (%v): %s", err, m.stderr)
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), m.stop())
		case <-tick.C:
		}
	}
}

// stopPatience is how long a mount may take to end: it waits for open files.
const stopPatience = 30 * time.Second

// stop ends the mount, cleanly if possible, and leaves none behind.
func (m *mount) stop() error {
	_ = m.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	var err error
	select {
	case err = <-m.ended:
	case <-time.After(stopPatience):
		_ = m.cmd.Process.Kill()
		err = errors.Join(fmt.Errorf("moraine mount did not end within %v: %s", stopPatience, m.stderr), <-m.ended)
	}
	if mounted, mountErr := fuse.IsMounted(m.dir); mountErr == nil && mounted {
		err = errors.Join(err, fuse.Detach(m.dir))
	}
	return err
}
