package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Mounted is a mount of a benchmark.
type Mounted struct {
	Dir string
	// Pids returns the processes that serve it.
	Pids func() []int
	// End unmounts it.
	End func() error
}

// ScaleMount mounts the cluster of a large state. It lists the large directory, finds every file,
// and removes the large directory, by the programs of the system. Each figure has the entries that
// it counted, and fails if some are missing. At the end come the most memory that the mount's
// processes and the leader had.
func ScaleMount(ctx context.Context, e *Env) (lines []Line, err error) {
	if e.State == "" && e.Large == 0 {
		return nil, errors.New("bench: scale-mount lists a large directory: say with --large how many files it has")
	}
	l, end, err := loadedState(ctx, e)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	if l.Large == 0 {
		return nil, fmt.Errorf("bench: %s has no large directory: load it with --large", l.dir)
	}
	on, err := l.start(ctx, e)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.stop(on)) }()
	if on.Mount == nil {
		return nil, errors.New("bench: scale-mount needs a cluster and a mount of its own: leave out --path and --endpoint")
	}
	s := &scaleMount{e: e, sized: sized{l, on}}
	if s.at, err = on.Mount(ctx); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.at.End()) }()
	for _, measure := range []func(context.Context) ([]Line, error){s.first, s.list, s.find, s.remove, s.memory} {
		more, err := measure(ctx)
		lines = append(lines, more...)
		if err = errors.Join(err, AllRun(on.Cluster)); err != nil {
			return lines, err
		}
	}
	return lines, nil
}

// scaleMount is a mount of the cluster on a loaded state.
type scaleMount struct {
	sized
	e  *Env
	at Mounted
}

func (s *scaleMount) large() string { return filepath.Join(s.at.Dir, largeDirectory) }

// again mounts again, so that neither the mount nor the kernel has names.
func (s *scaleMount) again(ctx context.Context) (err error) {
	if err := s.at.End(); err != nil {
		return err
	}
	s.at, err = s.on.Mount(ctx)
	return err
}

// first measures the time until a program has the first entries of the large directory.
func (s *scaleMount) first(context.Context) ([]Line, error) {
	s.e.Progress("the first entries of %d", s.Large)
	began := time.Now()
	d, err := os.Open(s.large())
	if err != nil {
		return nil, err
	}
	defer d.Close() //nolint:errcheck // nothing was written
	if _, err := d.Readdirnames(1); err != nil {
		return nil, err
	}
	return []Line{{Name: s.e.name("scale-mount-first"), Value: time.Since(began).Seconds(), Unit: "s"}}, nil
}

// list measures ls of the large directory.
func (s *scaleMount) list(ctx context.Context) ([]Line, error) {
	if err := s.again(ctx); err != nil {
		return nil, err
	}
	return s.work(ctx, "scale-mount-ls", s.Large, s.Large, "ls", s.large())
}

// find measures find over the whole state. It prints the root of the mount too.
func (s *scaleMount) find(ctx context.Context) ([]Line, error) {
	if err := s.again(ctx); err != nil {
		return nil, err
	}
	return s.work(ctx, "scale-mount-find", s.Inodes, s.Inodes+1, "find", s.at.Dir)
}

// remove measures rm of the large directory: its files, and the directory itself.
func (s *scaleMount) remove(ctx context.Context) ([]Line, error) {
	if err := s.again(ctx); err != nil {
		return nil, err
	}
	lines, err := s.work(ctx, "scale-mount-rm", s.Large+1, 0, "rm", "-r", s.large())
	if _, stat := os.Lstat(s.large()); err == nil && !errors.Is(stat, os.ErrNotExist) {
		err = fmt.Errorf("bench: rm left %s: %w", s.large(), stat)
	}
	return lines, err
}

// work measures a program that works on so many entries, and must print so many lines.
func (s *scaleMount) work(ctx context.Context, name string, entries, want uint64, program string, args ...string) ([]Line, error) {
	s.e.Progress("%s, of %d entries", program, entries)
	var printed uint64
	u, err := s.on.measure(ctx, func(ctx context.Context) (err error) {
		printed, err = printedLines(exec.CommandContext(ctx, program, args...))
		return err
	})
	if err != nil {
		return nil, err
	}
	if printed != want {
		return nil, fmt.Errorf("bench: %s printed %d lines, not %d", program, printed, want)
	}
	peak := 0.0
	for _, pid := range s.at.Pids() {
		u.cpu += processCPU(pid) // the mount is no child of this process, and began with this figure
		peak += peakBytes(pid)
	}
	n := float64(entries)
	s.e.Progress("%s took %.1f s, %.1f s of CPU; the mount had %.0f MB", program, u.wall.Seconds(), u.cpu, peak/1e6)
	return []Line{
		{Name: s.e.name(name), Value: n / u.wall.Seconds(), Unit: "ops/s", CPU: u.cpu / (n / 1e6), DeviceBytes: u.wrote, Syncs: u.syncs},
		{Name: s.e.name(name + "-time"), Value: u.wall.Seconds(), Unit: "s"},
		{Name: s.e.name(name + "-memory"), Value: peak, Unit: "bytes"},
	}, nil
}

// printedLines runs a program and counts the lines that it prints.
func printedLines(cmd *exec.Cmd) (lines uint64, err error) {
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	r := bufio.NewReader(out)
	for ; err == nil; lines++ {
		_, err = r.ReadSlice('\n')
	}
	lines--
	if err == io.EOF {
		err = nil
	}
	if end := cmd.Wait(); end != nil {
		err = errors.Join(err, fmt.Errorf("%s: %w: %s", cmd.Path, end, said.String()))
	}
	return lines, err
}

// memory returns the most memory that the leader had, and the number of inodes.
func (s *scaleMount) memory(ctx context.Context) ([]Line, error) {
	leader, err := s.on.leading(ctx)
	if err != nil {
		return nil, err
	}
	return []Line{
		{Name: s.e.name("scale-mount-inodes"), Value: float64(s.Inodes), Unit: "inodes"},
		{Name: s.e.name("scale-mount-leader-memory"), Value: peakBytes(leader.Pid()), Unit: "bytes"},
	}, nil
}

// peakBytes returns the most memory that a process had so far.
func peakBytes(pid int) float64 {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	defer f.Close() //nolint:errcheck // nothing was written
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if rest, ok := strings.CutPrefix(sc.Text(), "VmHWM:"); ok {
			kib, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kib * 1024
		}
	}
	return 0
}
