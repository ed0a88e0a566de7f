package mountkills_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/testseed"
)

// cell is one operation with one fault.
type cell struct {
	op    operation
	fault fault
	// dirs are the cell's directory, on each mount.
	dirs   [2]string
	size   int64
	procs  [2]*process
	events [2][]event // in the order of each program
	// The fault began at struck, and at back everything ran again.
	struck, back int64
	permitted    map[string]int // errors that the promises permit, by call
}

// process is a running program.
type process struct {
	cmd    *exec.Cmd
	input  io.Closer // its end stops the program
	errors bytes.Buffer
	ended  chan struct{}
	count  atomic.Int64 // of events

	mu     sync.Mutex // guards events
	events []event
}

const (
	// A program that makes no progress for this long after a fault is stuck.
	patience = 90 * time.Second
	// lingering is longer than the service waits for sessions that may have a removed file open.
	lingering = 12 * time.Second
)

// run is a round: the operations at once, with one fault.
func (b *bench) run(t *testing.T, seed uint64, f fault, ops ...operation) {
	t.Helper()
	name := "all"
	if len(ops) == 1 {
		name = ops[0].name
	}
	t.Run(fmt.Sprintf("%d/%s/%s", seed, f.name, name), func(t *testing.T) {
		r := random(seed, f.name+name)
		if f.daemon >= 0 {
			b.mounts[f.daemon].await()
		}
		var cells []*cell
		for _, op := range ops {
			cells = append(cells, b.begin(t, op, f, r.Uint64()))
		}
		progress(t, cells, 3)
		time.Sleep(time.Duration(r.IntN(400)) * time.Millisecond) // of work
		struck := monotonic()
		f.strike(t, b, r)
		back := monotonic()
		progress(t, cells, 10)
		time.Sleep(testseed.Of(500, time.Duration(500+r.IntN(1500))) * time.Millisecond) // of work
		if len(ops) == 1 && ops[0].name == unlinks.name && seed%2 == 0 {
			time.Sleep(lingering)
		}
		for _, c := range cells { // all at once: those that work on would slow the others down
			c.stop(t)
		}
		for _, c := range cells {
			c.struck, c.back = struck, back
			c.end(t)
		}
		t.Logf("the fault took %v", time.Duration(back-struck).Round(time.Millisecond))
	})
}

// begin makes the files of a cell, and starts its programs.
func (b *bench) begin(t *testing.T, op operation, f fault, seed uint64) *cell {
	t.Helper()
	r := random(seed, "cell")
	c := &cell{op: op, fault: f, permitted: map[string]int{}, size: []int64{2 << 10, 64 << 10, 300 << 10}[r.IntN(3)]}
	made, err := os.MkdirTemp(b.mounts[r.IntN(2)].dir, strings.ReplaceAll(op.name, " ", "-")+"-")
	require.NoError(t, err)
	if op.prepare != nil {
		require.NoError(t, op.prepare(made, c.size))
	}
	for i := range c.procs {
		c.dirs[i] = filepath.Join(b.mounts[i].dir, filepath.Base(made))
		c.procs[i] = start(t, task{Operation: op.name, Dir: c.dirs[i], Prog: i, Seed: seed, Size: c.size})
	}
	return c
}

// start starts a program, which is killed at the end of the test if it has not ended.
func start(t *testing.T, what task) *process {
	t.Helper()
	spec, err := json.Marshal(what)
	require.NoError(t, err)
	p := &process{cmd: exec.Command("/proc/self/exe"), ended: make(chan struct{})}
	// No signals of the runtime: they would interrupt calls. The race detector would wait a second at
	// the end of each program.
	p.cmd.Env = append(os.Environ(), envTask+"="+string(spec), "GODEBUG=asyncpreemptoff=1", "GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0")
	p.cmd.Stderr = &p.errors
	p.input, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.ended)
		in := json.NewDecoder(bufio.NewReader(out))
		for {
			var e event
			if in.Decode(&e) != nil {
				return
			}
			p.mu.Lock()
			p.events = append(p.events, e)
			p.mu.Unlock()
			p.count.Add(1)
		}
	}()
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Signal(syscall.SIGKILL)
			_ = p.cmd.Wait()
		}
	})
	return p
}

// progress waits until each program has made some more calls.
func progress(t *testing.T, cells []*cell, calls int64) {
	t.Helper()
	for _, c := range cells {
		for prog, p := range c.procs {
			want := p.count.Load() + calls
			for end := time.Now().Add(patience); p.count.Load() < want; time.Sleep(5 * time.Millisecond) {
				select {
				case <-p.ended:
					require.Fail(t, "a program has ended", "%s of mount %d: %s", c.op.name, prog, p.errors.String())
				default:
				}
				if time.Now().After(end) {
					require.Fail(t, "a program is stuck", "%s of mount %d; its last call was %+v", c.op.name, prog, p.last())
				}
			}
		}
	}
}

func (p *process) last() (e event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.events); n > 0 {
		e = p.events[n-1]
	}
	return e
}

// stop has the programs of a cell end after the step that they are in.
func (c *cell) stop(t *testing.T) {
	t.Helper()
	for _, p := range c.procs {
		require.NoError(t, p.input.Close())
	}
}

// end waits until the programs of a cell have ended, and checks what they saw.
func (c *cell) end(t *testing.T) {
	t.Helper()
	for i, p := range c.procs {
		select {
		case <-p.ended:
		case <-time.After(patience):
			require.Fail(t, "a program does not end", "%s of mount %d; its last call was %+v", c.op.name, i, p.last())
		}
		require.NoError(t, p.cmd.Wait(), "%s of mount %d: %s", c.op.name, i, p.errors.String())
		c.events[i] = p.events
	}
	wrong := append(c.mistakes(), c.op.check(c)...)
	said := ""
	for _, k := range slices.Sorted(maps.Keys(c.permitted)) {
		said += fmt.Sprintf(", %s: %d", k, c.permitted[k])
	}
	t.Logf("%s of %d bytes: %d and %d calls%s", c.op.name, c.size, len(c.events[0]), len(c.events[1]), said)
	if len(wrong) > 0 {
		t.Errorf("%s, size %d, directory %s: %d mistakes\n%s", c.op.name, c.size, c.dirs[0], len(wrong), strings.Join(wrong[:min(len(wrong), 15)], "\n"))
	}
}
