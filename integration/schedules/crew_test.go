package schedules_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/morainefs/moraine/internal/netns"
)

// member is a worker process of a schedule, on a host of its own. Its methods may
// be called concurrently.
type member struct {
	name string
	net  *netns.Net
	spec settings
	log  string // of its output besides replies

	mu      sync.Mutex
	cmd     *exec.Cmd
	in      io.WriteCloser
	exited  chan struct{}
	pending map[uint64]chan reply
	next    uint64
	starts  int
}

// errGone means that the worker is gone, and that the outcome of its request is
// unknown.
var errGone = errors.New("the client is gone")

// start starts the process; it serves when ready has returned.
func (m *member) start() error {
	spec, err := json.Marshal(m.spec)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(m.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	line := append(m.net.Command(m.name), self)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = append(os.Environ(), workerVariable+"="+string(spec))
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	// Not the command's own pipe: replies sent before the kill count.
	out, said, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.Stdout = said
	exited, started := make(chan struct{}), make(chan error)
	go func() {
		// Pdeathsig is sent when the thread that forked ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		said.Close() //nolint:errcheck // the process has its own
		started <- err
		if err == nil {
			_ = cmd.Wait() // by a signal, mostly
		}
	}()
	if err := <-started; err != nil {
		return errors.Join(err, out.Close())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cmd, m.in, m.exited, m.pending = cmd, in, exited, map[uint64]chan reply{}
	m.pending[0] = make(chan reply, 1) // it has started
	m.starts++
	go m.listen(out, m.pending, exited)
	return nil
}

// listen forwards the answers of a process until it has ended.
func (m *member) listen(out io.ReadCloser, pending map[uint64]chan reply, exited chan struct{}) {
	defer out.Close()
	for dec := json.NewDecoder(bufio.NewReader(out)); ; {
		var a reply
		if err := dec.Decode(&a); err != nil {
			break
		}
		m.mu.Lock()
		ch := pending[a.ID]
		delete(pending, a.ID)
		m.mu.Unlock()
		if ch != nil {
			ch <- a
		}
	}
	close(exited)
}

// ready waits until the process has a session.
func (m *member) ready() error {
	m.mu.Lock()
	ch, exited := m.pending[0], m.exited
	m.mu.Unlock()
	if ch == nil {
		return nil
	}
	select {
	case <-ch:
		return nil
	case <-exited:
		return fmt.Errorf("%s: %w", m.name, errGone)
	}
}

// ask sends a request to the worker. An error means that it failed, or that its
// outcome is unknown.
func (m *member) ask(r request) (reply, error) {
	m.mu.Lock()
	if m.cmd == nil {
		m.mu.Unlock()
		return reply{}, errGone
	}
	m.next++
	r.ID = m.next
	ch := make(chan reply, 1)
	exited, in := m.exited, m.in
	m.pending[r.ID] = ch
	line, err := json.Marshal(r)
	if err == nil {
		_, err = in.Write(append(line, '\n'))
	}
	m.mu.Unlock()
	if err != nil {
		return reply{}, errors.Join(errGone, err)
	}
	var a reply
	select {
	case a = <-ch:
	case <-exited:
		select {
		case a = <-ch: // its last answer
		default:
			return reply{}, errGone
		}
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}

// pid is the process's, 0 if there is none.
func (m *member) pid() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd == nil {
		return 0
	}
	return m.cmd.Process.Pid
}

// kill ends it with SIGKILL, and waits until it is gone.
func (m *member) kill() error {
	m.mu.Lock()
	cmd, exited := m.cmd, m.exited
	m.cmd = nil
	m.mu.Unlock()
	if cmd == nil {
		return nil
	}
	err := cmd.Process.Kill()
	select {
	case <-exited:
		return err
	case <-time.After(time.Minute):
		return fmt.Errorf("%s does not end", m.name)
	}
}
