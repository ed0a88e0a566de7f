package devcluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/morainefs/moraine/internal/netns"
)

// Role is which server a node runs.
type Role string

const (
	// Metadata is `moraine metadata`.
	Metadata Role = "metadata"
	// Chunkserver is `moraine chunkserver`.
	Chunkserver Role = "chunkserver"
	// ObjectServer is `moraine object-server`: the local bucket.
	ObjectServer Role = "object-server"
	// S3 is `moraine s3`: the S3 endpoint.
	S3 Role = "s3"
)

// Node is one server process. Its methods may be called concurrently.
type Node struct {
	// Name is its node id, Address that of its service, Admin that of its metrics
	// and health, and Dir the directory of its data.
	Name, Address, Admin, Dir string
	Role                      Role

	binary string
	net    *netns.Net // the network of its host; nil: it has no host of its own
	args   []string
	env    []string
	extra  []string // flags of its next start
	log    string

	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{}
	exit   error
}

// Start starts the process; it does not wait until it serves (see Ready). It leaves
// a running node alone.
func (n *Node) Start() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.running() {
		return nil
	}
	logFile, err := os.OpenFile(n.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer logFile.Close()
	line := slices.Concat([]string{n.binary}, n.args, n.extra)
	if n.net != nil {
		line = append(n.net.Command(n.Name), line...)
	}
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.Env = append(os.Environ(), n.env...)
	// The child must not outlive the supervisor, however that ends. Nor must it get
	// the terminal's Ctrl-C, which the supervisor turns into an orderly end.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	exited := make(chan struct{})
	started := make(chan error)
	go func() {
		// Pdeathsig is sent when the thread that forked ends, so that thread must
		// live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		err := cmd.Wait()
		n.mu.Lock()
		n.exit = err
		n.mu.Unlock()
		close(exited)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", n.Name, err)
	}
	n.cmd, n.exited = cmd, exited
	return nil
}

// SetFlags adds flags to the node's command line from its next start on. They replace those of an
// earlier SetFlags.
func (n *Node) SetFlags(flags ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.extra = flags
}

func (n *Node) running() bool {
	if n.cmd == nil {
		return false
	}
	select {
	case <-n.exited:
		return false
	default:
		return true
	}
}

// Running reports whether the process runs.
func (n *Node) Running() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.running()
}

// Exited is closed when the last started process has ended.
func (n *Node) Exited() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.exited
}

// Pid returns the process's id, 0 if none runs.
func (n *Node) Pid() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.running() {
		return 0
	}
	return n.cmd.Process.Pid
}

// Signal sends sig; a node that does not run is an error.
func (n *Node) Signal(sig syscall.Signal) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.running() {
		return fmt.Errorf("%s is not running", n.Name)
	}
	return n.cmd.Process.Signal(sig)
}

// errNoHost is the error of a node without a host of its own.
var errNoHost = errors.New("node has no host of its own that could vanish (set devcluster.Config.OwnHosts)")

// Vanish disconnects the host of the process from the network, while the process
// runs on and its peers get no notice. Appear reconnects it.
func (n *Node) Vanish() error {
	if n.net == nil {
		return fmt.Errorf("%s: %w", n.Name, errNoHost)
	}
	return n.net.Down(n.Name)
}

// Appear ends a Vanish.
func (n *Node) Appear() error {
	if n.net == nil {
		return fmt.Errorf("%s: %w", n.Name, errNoHost)
	}
	return n.net.Up(n.Name)
}

// Kill ends the process with SIGKILL and waits until it is gone.
func (n *Node) Kill() error { return n.end(syscall.SIGKILL, time.Minute) }

// Stop ends the process with SIGTERM and waits. After patience it kills the
// process, which is an error.
func (n *Node) Stop(patience time.Duration) error { return n.end(syscall.SIGTERM, patience) }

func (n *Node) end(sig syscall.Signal, patience time.Duration) error {
	n.mu.Lock()
	if !n.running() {
		n.mu.Unlock()
		return nil
	}
	cmd, exited := n.cmd, n.exited
	n.mu.Unlock()
	if err := cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	// A stopped process does not see SIGTERM before it continues.
	_ = cmd.Process.Signal(syscall.SIGCONT)
	select {
	case <-exited:
		return nil
	case <-time.After(patience):
	}
	_ = cmd.Process.Kill()
	<-exited
	return fmt.Errorf("%s did not end within %v of %v", n.Name, patience, sig)
}

// Ready waits until the process answers its health check with success. If the
// process exits first, the error shows the end of its log.
func (n *Node) Ready(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if n.Healthy(ctx) {
			return nil
		}
		n.mu.Lock()
		exited := n.exited
		n.mu.Unlock()
		select {
		case <-exited:
			return errors.New(n.Why() + "; its log is " + n.log)
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w; its log is %s", n.Name, ctx.Err(), n.log)
		case <-tick.C:
		}
	}
}

// Why says on one line why the process ended: its last log line if that is
// readable, otherwise its exit status.
func (n *Node) Why() string {
	n.mu.Lock()
	exit := n.exit
	n.mu.Unlock()
	if words, ok := strings.CutPrefix(n.LogTail(1), "moraine: "); ok {
		return fmt.Sprintf("%s: %s", n.Name, words)
	}
	return fmt.Sprintf("%s ended: %v", n.Name, exit)
}

// Healthy queries the health check once.
func (n *Node) Healthy(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.Admin+"/healthz", nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// Log returns everything that the node's processes wrote.
func (n *Node) Log() string {
	data, err := os.ReadFile(n.log)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// LogTail returns the last lines that the process wrote.
func (n *Node) LogTail(lines int) string {
	all := strings.Split(strings.TrimRight(n.Log(), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// LogPath is where the process's output goes.
func (n *Node) LogPath() string { return filepath.Clean(n.log) }
