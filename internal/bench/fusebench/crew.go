package fusebench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// smallRun returns a row in which all processes work on their files at once.
func smallRun(op, prefix string, size int) func(context.Context, *site) (done, error) {
	return func(ctx context.Context, s *site) (done, error) {
		works := make([]Work, s.Processes)
		for p := range works {
			works[p] = Work{Op: op, Dir: s.smallDir(p), Prefix: prefix, Files: s.each(), Size: size}
			if op != opCreate {
				continue
			}
			if err := os.MkdirAll(works[p].Dir, 0o755); err != nil {
				return done{}, err
			}
		}
		return s.work(ctx, works)
	}
}

// smallOnce does the same before a warm row.
func smallOnce(op string) func(context.Context, *site) error {
	run := smallRun(op, "f", smallSize)
	return func(ctx context.Context, s *site) error { _, err := run(ctx, s); return err }
}

// workman is one process.
type workman struct {
	cmd    *exec.Cmd
	start  io.WriteCloser
	out    *bufio.Reader
	stderr strings.Builder
}

// work starts a process for each work. The clock runs from their common start signal until the last
// has ended its work.
func (s *site) work(ctx context.Context, works []Work) (d done, err error) {
	var crew []*workman
	defer func() {
		for _, m := range crew {
			_ = m.start.Close() // a process that waits for its start ends
			err = errors.Join(err, m.cmd.Wait())
		}
	}()
	for _, w := range works {
		m, err := s.hire(ctx, w)
		if err != nil {
			return done{}, err
		}
		crew = append(crew, m)
	}
	for _, m := range crew {
		if _, err := m.out.ReadString('\n'); err != nil {
			return done{}, fmt.Errorf("worker start failed: %w\n%s", err, m.stderr.String())
		}
	}
	start := time.Now()
	for _, m := range crew {
		if _, err := io.WriteString(m.start, "go\n"); err != nil {
			return done{}, err
		}
	}
	for _, m := range crew {
		var r result
		if err := json.NewDecoder(m.out).Decode(&r); err != nil {
			return done{}, fmt.Errorf("worker lost: %w\n%s", err, m.stderr.String())
		}
		if r.Error != "" {
			return done{}, errors.New(r.Error)
		}
		d.ops, d.bytes, d.cpu = d.ops+r.Ops, d.bytes+r.Bytes, d.cpu+r.CPU
	}
	d.wall = time.Since(start)
	return d, nil
}

// hire starts a process.
func (s *site) hire(ctx context.Context, w Work) (m *workman, err error) {
	spec, err := json.Marshal(w)
	if err != nil {
		return nil, err
	}
	m = &workman{cmd: exec.CommandContext(ctx, s.Worker[0], append(s.Worker[1:len(s.Worker):len(s.Worker)], "--work", string(spec))...)}
	m.cmd.Stderr = &m.stderr
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C reaches it through ctx
	if m.start, err = m.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	m.out = bufio.NewReader(out)
	return m, m.cmd.Start()
}
