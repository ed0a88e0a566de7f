package s3test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/morainefs/moraine/tiers/object/localserver"
)

// A process in between starts and kills the server. A test that has mounted a
// file system of its own cannot start processes. The child closes files of the
// mount before it runs, and waits for a parent that waits for the child.

const (
	dirVariable  = "MORAINE_S3TEST_DIR"
	addrVariable = "MORAINE_S3TEST_LISTEN"
	roleVariable = "MORAINE_S3TEST_ROLE"
	roleServer   = "server"
	roleBetween  = "supervisor"

	orderStart = "start"
	orderKill  = "kill"
	answerDone = "done"
)

// childOf returns what this process must run instead of tests; nil: nothing.
func childOf() func() int {
	switch os.Getenv(roleVariable) {
	case roleServer:
		return func() int {
			err := localserver.Run(context.Background(), localserver.Config{Dir: os.Getenv(dirVariable), Listen: os.Getenv(addrVariable), Bucket: bucketName}, slog.New(slog.DiscardHandler))
			fmt.Fprintln(os.Stderr, "object server:", err)
			return 1
		}
	case roleBetween:
		return func() int { return supervise(os.Stdin, os.Stdout) }
	}
	return nil
}

// child runs this executable again in another role.
func child(role, dir, addr string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"="+role, dirVariable+"="+dir, addrVariable+"="+addr)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// supervisor is the process in between, seen from its parent.
type supervisor struct {
	mu      sync.Mutex // guards orders and answers: one at a time
	orders  io.WriteCloser
	answers *bufio.Scanner
	cmd     *exec.Cmd
	done    chan struct{}
}

// begin starts the process; it has no server yet.
func (s *supervisor) begin(dir, addr string) error {
	s.cmd, s.done = child(roleBetween, dir, addr), make(chan struct{})
	in, err := s.cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	s.orders, s.answers = in, bufio.NewScanner(out)
	started := make(chan error)
	go func() {
		// The child dies with the thread that forked it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := s.cmd.Start()
		started <- err
		if err == nil {
			_, _ = s.cmd.Process.Wait() // not cmd.Wait, which closes the pipe of answers
			close(s.done)
		}
	}()
	return <-started
}

// order makes the process carry out an order, and returns when it has.
func (s *supervisor) order(what string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := fmt.Fprintln(s.orders, what); err != nil {
		return err
	}
	if !s.answers.Scan() {
		return errors.Join(errors.New("the supervisor of the object server ended"), s.answers.Err())
	}
	if got := s.answers.Text(); got != answerDone {
		return errors.New(got)
	}
	return nil
}

// end ends the process, and its server with it.
func (s *supervisor) end() {
	s.orders.Close()
	<-s.done
}

// supervise carries out orders until there are no more.
func supervise(orders io.Reader, answers io.Writer) int {
	runtime.LockOSThread() // the server dies with the thread that forked it
	var server *exec.Cmd
	kill := func() {
		if server != nil && server.Process != nil {
			_ = server.Process.Kill()
			_ = server.Wait()
		}
		server = nil
	}
	defer kill()
	for in := bufio.NewScanner(orders); in.Scan(); {
		var err error
		switch in.Text() {
		case orderKill:
			kill()
		case orderStart:
			if server == nil {
				server = child(roleServer, os.Getenv(dirVariable), os.Getenv(addrVariable))
				if err = serve(server); err != nil {
					kill()
				}
			}
		}
		answer := answerDone
		if err != nil {
			answer = strings.ReplaceAll(err.Error(), "\n", " ")
		}
		fmt.Fprintln(answers, answer)
	}
	return 0
}

// serve starts a server and returns when it serves. It returns an error if the
// server has ended.
func serve(server *exec.Cmd) error {
	if err := server.Start(); err != nil {
		return err
	}
	for {
		resp, err := http.Get("http://" + os.Getenv(addrVariable) + localserver.HealthPath)
		if err == nil {
			resp.Body.Close()
			return nil
		}
		if over, err := ended(server); over {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// ended reports whether a child has ended, without collecting its status.
func ended(cmd *exec.Cmd) (bool, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
	if err != nil {
		return true, err
	}
	after := stat[strings.LastIndexByte(string(stat), ')')+1:]
	if strings.HasPrefix(string(after), " Z") {
		return true, errors.New("object server ended during its start")
	}
	return false, nil
}
