package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/morainefs/moraine/internal/devcluster"
)

// team is the rank processes of one start of the job.
type team struct {
	members []*member
	events  chan event
	readers sync.WaitGroup
}

type member struct {
	cmd    *exec.Cmd
	orders io.WriteCloser
	stderr *tail
}

// job says which ranks a team has, and what they save or restore.
type job struct {
	cluster     *devcluster.Cluster
	run, launch string
	world       uint32
	readOnly    bool
	agent       string // socket of the agent that keeps the saves; empty: the ranks write them
	bytes       int64  // bound of the model; 0: llama.Demo
}

// startTeam starts the ranks of a job, each a process, and waits until all are ready.
func (d *demo) startTeam(ctx context.Context, j job) (*team, error) {
	t := &team{events: make(chan event, 1024)}
	for rank := range j.world {
		args := []string{"demo", "rank", "--endpoint", j.cluster.Endpoint(), "--certs", j.cluster.Certs(),
			"--identity", "client", "--mode", j.cluster.Mode(), "--log-level", "warn",
			"--run", j.run, "--launch", j.launch, "--rank", strconv.Itoa(int(rank)), "--world", strconv.Itoa(int(j.world)),
			"--agent", j.agent, "--bytes", strconv.FormatInt(j.bytes, 10)}
		if j.readOnly {
			args = append(args, "--read-only")
		}
		if err := t.start(d.cfg.Binary, args); err != nil {
			t.kill()
			return nil, err
		}
	}
	go func() {
		t.readers.Wait()
		close(t.events)
	}()
	if _, err := t.collect(ctx, int(j.world), "ready", nil); err != nil {
		t.kill()
		return nil, err
	}
	return t, nil
}

func (t *team) start(binary string, args []string) error {
	m := &member{cmd: exec.Command(binary, args...), stderr: &tail{}}
	m.cmd.Stderr = m.stderr
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// A rank whose orders end, because the demo has ended, ends too.
	orders, err := m.cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := m.cmd.Start(); err != nil {
		return err
	}
	m.orders = orders
	t.members = append(t.members, m)
	t.readers.Add(1)
	go func() {
		defer t.readers.Done()
		sc := bufio.NewScanner(out)
		sc.Buffer(nil, 16<<20)
		for sc.Scan() {
			var e event
			if err := json.Unmarshal(sc.Bytes(), &e); err == nil {
				t.events <- e
			}
		}
	}()
	return nil
}

// order sends an order to ranks: all of them, if none is named.
func (t *team) order(o order, ranks ...int) error {
	line, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if ranks == nil {
		for i := range t.members {
			ranks = append(ranks, i)
		}
	}
	for _, i := range ranks {
		if _, err := t.members[i].orders.Write(append(line, '\n')); err != nil {
			return fmt.Errorf("rank %d: %w\n%s", i, err, t.members[i].stderr)
		}
	}
	return nil
}

// collect waits for want events of a kind and returns them. It passes others to
// other, if it is not nil. A failed rank ends it, unless it waits for that.
func (t *team) collect(ctx context.Context, want int, kind string, other func(event) error) ([]event, error) {
	var got []event
	for len(got) < want {
		select {
		case <-ctx.Done():
			return got, ctx.Err()
		case e, ok := <-t.events:
			switch {
			case !ok:
				return got, fmt.Errorf("the ranks have ended:\n%s", t.complaints())
			case e.Event == kind:
				got = append(got, e)
			case e.Event == "failed":
				return got, fmt.Errorf("rank %d: %s", e.Rank, e.Error)
			}
			if other != nil {
				if err := other(e); err != nil {
					return got, err
				}
			}
		}
	}
	return got, nil
}

func (t *team) complaints() string {
	var b strings.Builder
	for i, m := range t.members {
		if s := m.stderr.String(); s != "" {
			fmt.Fprintf(&b, "rank %d: %s\n", i, s)
		}
	}
	return b.String()
}

// killRank ends one rank with SIGKILL.
func (t *team) killRank(rank int) error {
	if err := t.members[rank].cmd.Process.Kill(); err != nil {
		return err
	}
	_ = t.members[rank].cmd.Wait() // killed: its error is expected
	return nil
}

// killed counts the ranks that SIGKILL has ended.
func (t *team) killed() (n int) {
	for _, m := range t.members {
		if m.cmd.ProcessState == nil {
			continue // it runs
		}
		if st, ok := m.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && st.Signaled() && st.Signal() == syscall.SIGKILL {
			n++
		}
	}
	return n
}

// dismiss ends the orders of all ranks and waits for them.
func (t *team) dismiss() {
	for _, m := range t.members {
		_ = m.orders.Close()
	}
	for range t.events { //nolint:revive // the pipes must be read to the end
	}
	for _, m := range t.members {
		_ = m.cmd.Wait() // its output came as events
	}
}

// kill ends all ranks at once.
func (t *team) kill() {
	for _, m := range t.members {
		if m.cmd.ProcessState == nil {
			_ = m.cmd.Process.Kill()
		}
	}
	for _, m := range t.members {
		_ = m.orders.Close()
		_ = m.cmd.Wait()
	}
}

// tail keeps the end of a process's error output.
type tail struct {
	mu   sync.Mutex
	data []byte
}

// Write implements io.Writer. It keeps the last 4 KiB.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, p...)
	const keep = 4 << 10
	t.data = t.data[max(0, len(t.data)-keep):]
	return len(p), nil
}

// String returns what is kept, without spaces at the ends.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.data))
}
