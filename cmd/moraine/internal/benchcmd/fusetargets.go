package benchcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/bench"
	"github.com/morainefs/moraine/internal/bench/fusebench"
	"github.com/morainefs/moraine/internal/devcluster"
)

// targets returns the directories of --path.
func (f fuseOptions) targets() (targets []fusebench.Target, err error) {
	remounts := map[string]string{}
	for _, r := range f.remounts {
		dir, command, ok := strings.Cut(r, "=")
		if !ok || !slices.Contains(f.paths, dir) {
			return nil, cli.UsageError("--remount %q: write DIR=COMMAND, where DIR is one of --path", r)
		}
		remounts[dir] = command
	}
	if f.pathsOnly && len(f.paths) == 0 {
		return nil, cli.UsageError("--paths-only: name a directory with --path")
	}
	for _, dir := range f.paths {
		// A misspelt name would measure another disk.
		if st, err := os.Stat(dir); err != nil || !st.IsDir() {
			return nil, cli.UsageError("--path %s: name a directory of the file system to measure", dir)
		}
		t := fusebench.Target{Name: dir, Dir: dir, Cool: coolPath(dir, remounts[dir])}
		if isFuse(dir) {
			t.Mount, t.Servers = byName(f.mountProcess), byName(f.serverProcess)
		} else {
			none := func() []int { return nil } // the kernel is all
			t.Mount, t.Servers = none, none
		}
		targets = append(targets, t)
	}
	return targets, nil
}

// coolPath returns how the caches of a path are emptied: by a command, where there is one, and by
// dropping the page cache, where this process may.
func coolPath(dir, remount string) func(context.Context, bool) (string, error) {
	return func(ctx context.Context, _ bool) (string, error) {
		var how []string
		if remount != "" {
			cmd := exec.CommandContext(ctx, "sh", "-c", remount)
			// A daemon that the command leaves behind keeps its output open, so a pipe would not end.
			if err := cmd.Run(); err != nil {
				return "", fmt.Errorf("--remount %s: %w", dir, err)
			}
			how = append(how, "remounted by command")
		}
		if os.Geteuid() == 0 {
			if err := bench.Cool(ctx, nil); err != nil {
				return "", err
			}
			how = append(how, "page cache dropped")
		}
		if len(how) == 0 {
			return "", fmt.Errorf("%w: run it as root, or give --remount %s=COMMAND", fusebench.ErrNotCold, dir)
		}
		if remount == "" && isFuse(dir) {
			how = append(how, "caches of the mount's process kept")
		}
		return strings.Join(how, ", "), nil
	}
}

// isFuse reports whether a process serves the file system of dir.
func isFuse(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.FUSE_SUPER_MAGIC
}

// byName returns a function that lists the processes with one of the names; nil without names.
func byName(names []string) func() []int {
	if len(names) == 0 {
		return nil
	}
	return func() (pids []int) {
		files, _ := filepath.Glob("/proc/[0-9]*/comm")
		for _, f := range files {
			name, err := os.ReadFile(f)
			if err != nil || !slices.Contains(names, strings.TrimSpace(string(name))) {
				continue
			}
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil {
				pids = append(pids, pid)
			}
		}
		return pids
	}
}

// fuseMount is the mount that bench fuse measures.
type fuseMount struct {
	env     *cli.Env
	cluster *devcluster.Cluster // nil: another's
	dir     string
	profile string
	args    []string // further arguments of the mount command
	mounts  int
	now     *benchMounted
}

// start mounts. Each process of the mount has a profile of its own.
func (m *fuseMount) start(ctx context.Context) error {
	m.mounts++
	profile := ""
	if m.profile != "" {
		profile = fmt.Sprintf("%s.mount-%d", m.profile, m.mounts)
	}
	now, err := startMount(ctx, m.env, m.dir, profile, m.args...)
	if err == nil {
		m.now = &now
	}
	return err
}

// stop unmounts.
func (m *fuseMount) stop(ctx context.Context) error {
	if m.now == nil {
		return nil
	}
	err := m.now.end(ctx)
	m.now = nil
	return err
}

// cool mounts again, on servers without content of files in memory, and without page cache.
func (m *fuseMount) cool(ctx context.Context, data bool) (how string, err error) {
	if data && (os.Geteuid() != 0 || m.cluster == nil) {
		return "", fmt.Errorf("%w: the servers keep what they have read; run it as root, on a cluster of its own", fusebench.ErrNotCold)
	}
	if err := m.stop(ctx); err != nil {
		return "", err
	}
	how = "mounted again"
	if os.Geteuid() == 0 {
		restarted := m.cluster
		if !data {
			restarted = nil
		}
		if err := bench.Cool(ctx, restarted); err != nil {
			return "", errors.Join(err, m.start(ctx))
		}
		if restarted != nil {
			how += ", chunkservers restarted"
		}
		how += ", page cache dropped"
	}
	return how, m.start(ctx)
}

// target is the mount as a target.
func (m *fuseMount) target() fusebench.Target {
	t := fusebench.Target{Name: "moraine", Dir: m.now.dir, Cool: m.cool, Redundancy: 1.5, Mount: func() []int {
		if m.now == nil {
			return nil
		}
		return withChildren(m.now.pid)
	}}
	if m.cluster != nil {
		t.Servers = func() (pids []int) {
			for _, n := range m.cluster.All() {
				pids = append(pids, n.Pid())
			}
			return pids
		}
	}
	return t
}

// withChildren returns a process and its children: the supervisor of a mount and its daemon.
func withChildren(pid int) []int {
	all := []int{pid}
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, t := range threads {
		b, err := os.ReadFile(t)
		if err != nil {
			continue // the thread has ended
		}
		for _, child := range strings.Fields(string(b)) {
			if n, err := strconv.Atoi(child); err == nil {
				all = append(all, n)
			}
		}
	}
	return all
}
