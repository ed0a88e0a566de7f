package mountcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// child is a daemon, as its supervisor sees it.
type child struct {
	cmd    *exec.Cmd
	link   *link
	kernel *os.File // its connection
	// said are its messages. It is closed when the process is dead (death.go).
	said chan message
	exit error // how it ended; after said is closed
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// preparePatience is how long a program may take to start.
const preparePatience = time.Minute

// prepare starts a daemon from a program, and returns when it could serve.
func (s *supervisor) prepare(binary *os.File) (c *child, err error) {
	own, other, err := newLink()
	if err != nil {
		return nil, err
	}
	defer other.Close()
	c = &child{link: own, said: make(chan message)}
	if c.kernel, err = s.mount.Connect(); err != nil {
		return nil, errors.Join(err, own.conn.Close())
	}
	const firstFD = 3 // of cmd.ExtraFiles
	// By its descriptor: a package manager may have replaced the file.
	c.cmd = exec.Command(fmt.Sprintf("/proc/self/fd/%d", binary.Fd()), s.args...)
	c.cmd.Args[0] = "moraine"
	c.cmd.Env = append(slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "MORAINE_MOUNT_READY_FD=") }),
		fmt.Sprintf("MORAINE_MOUNT_DAEMON_FD=%d", firstFD))
	if c.cmd.Dir = s.cwd; !isDirectory(s.cwd) {
		c.cmd.Dir = "/"
	}
	c.cmd.Stdout, c.cmd.Stderr = os.Stdout, os.Stderr
	c.cmd.ExtraFiles = []*os.File{other, c.kernel, s.mount.State, s.record.file}
	if err := c.cmd.Start(); err != nil {
		return nil, errors.Join(err, own.conn.Close(), c.kernel.Close())
	}
	_ = other.Close() // only the daemon has it now: its end closes the socket
	proc, err := os.OpenRoot(fmt.Sprintf("/proc/%d", c.pid()))
	if err != nil {
		s.log.Warn("a daemon that is killed while it waits in the kernel for itself will not be replaced", "dir", s.dir, "err", err)
	}
	dead := make(chan error, 1)
	go func() {
		err := awaitDeath(proc, c.cmd.Wait)
		if errors.Is(err, errRemains) {
			_ = c.link.stopReceiving() // the thread that remains keeps the other end open
		}
		dead <- err
	}()
	go c.listen(dead)
	if err := c.await(prepared, preparePatience); err != nil {
		return nil, errors.Join(err, c.kernel.Close())
	}
	return c, nil
}

func isDirectory(dir string) bool {
	st, err := os.Stat(dir)
	return err == nil && st.IsDir()
}

// listen receives messages until the process is dead.
func (c *child) listen(dead <-chan error) {
	for {
		m, err := c.link.receive()
		if err != nil {
			break
		}
		c.said <- m
	}
	if c.exit = <-dead; c.exit == nil {
		c.exit = errors.New("it ended without a word")
	}
	_ = c.link.conn.Close()
	close(c.said)
}

// await waits for a message. After an error the process is dead.
func (c *child) await(v verb, patience time.Duration) error {
	late := time.NewTimer(patience)
	defer late.Stop()
	var said error
	for {
		select {
		case m, alive := <-c.said:
			switch {
			case !alive && said != nil:
				return said
			case !alive:
				return fmt.Errorf("the daemon of the mount ended (%w); its log says more", c.exit)
			case m.Verb == v:
				return nil
			case m.err() != nil:
				said = m.err()
			}
		case <-late.C:
			_ = c.cmd.Process.Kill()
			said = fmt.Errorf("the daemon of the mount did not answer within %v", patience)
		}
	}
}

// begin has a prepared daemon serve.
func (s *supervisor) begin(ctx context.Context, c *child) error {
	if err := c.link.send(message{Verb: begin}); err != nil {
		_ = c.cmd.Process.Kill()
	}
	stopped := context.AfterFunc(ctx, func() { _ = c.link.send(message{Verb: stop}) })
	defer stopped()
	if err := c.await(ready, startPatience); err != nil {
		s.bury(c)
		return err
	}
	return nil
}

// start starts a daemon, and returns when it serves.
func (s *supervisor) start(ctx context.Context, binary *os.File) (*child, error) {
	c, err := s.prepare(binary)
	if err != nil {
		return nil, err
	}
	return c, s.begin(ctx, c)
}
