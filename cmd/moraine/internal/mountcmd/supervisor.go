package mountcmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/fuse"
)

// The supervisor of a mount has the connection to the kernel. It does nothing for the calls on the
// mount, and so has little that can fail. RFC 0032 has the design.
//
// One path through it: supervise mounts (fuse.Attach) -> start starts a daemon (child.go) -> the
// daemon dies (death.go) -> bury has the kernel send once more what the daemon did not answer -> start
// starts the next one.

// supervisor is the supervisor of one mount.
type supervisor struct {
	dir    string
	args   []string // of the command line
	cwd    string   // in which relative paths of args begin
	log    *slog.Logger
	mount  *fuse.Attachment
	record *mountRecord
	binary *os.File // of the daemon

	crashes  []time.Time // those of the last crashTime
	upgrades chan *upgrade
	hangups  chan os.Signal // for the daemon
}

const (
	// After maxCrashes of daemons within crashTime the supervisor gives up, and calls on the mount fail.
	maxCrashes = 5
	crashTime  = time.Minute
	// startPatience is how long the supervisor tries to start the next daemon, for example while the
	// cluster does not answer.
	startPatience = 5 * time.Minute
	// firstRestart and lastRestart are the first and the longest pause before that.
	firstRestart, lastRestart = 100 * time.Millisecond, 5 * time.Second
)

// supervise is a serveFunc whose daemon may crash and be upgraded.
func supervise(ctx context.Context, env *cli.Env, o MountOptions, loc cli.Location, dir string, ready func()) (err error) {
	log, err := env.Log()
	if err != nil {
		return err
	}
	cfg, err := o.fuseConfig(loc, dir)
	if err != nil {
		return err
	}
	s := &supervisor{dir: dir, args: env.Args, log: log, upgrades: make(chan *upgrade), hangups: make(chan os.Signal, 1)}
	if o.accessLog != "" { // otherwise a hangup ends the process, as ever
		signal.Notify(s.hangups, syscall.SIGHUP)
		defer signal.Stop(s.hangups)
	}
	if s.cwd, err = os.Getwd(); err != nil {
		return err
	}
	if s.binary, err = os.Open("/proc/self/exe"); err != nil {
		return err
	}
	if s.record, err = openMountRecord(dir, loc.String()); err != nil {
		return err
	}
	defer func() { s.record.end(err) }() // the last of all
	if s.mount, err = fuse.Attach(cfg, log); err != nil {
		return err
	}
	c, err := s.start(ctx, s.binary)
	if err != nil {
		return errors.Join(err, fuse.Detach(dir))
	}
	end, err := s.listen()
	if err != nil {
		log.Warn("moraine mount --upgrade does not work on this mount: its control socket could not be made", "err", err)
		end = func() {}
	}
	defer end()
	ready()
	debug.FreeOSMemory() // from here on it mostly waits
	return s.watch(ctx, c)
}

// watch keeps the mount served until it ends.
func (s *supervisor) watch(ctx context.Context, c *child) error {
	done := ctx.Done()
	for {
		select {
		case <-done:
			done = nil
			_ = c.link.send(message{Verb: stop}) // if it is dead, said is closed
		case <-s.hangups:
			_ = c.cmd.Process.Signal(syscall.SIGHUP) // if it is dead, the next one opens the log anyway
		case u := <-s.upgrades:
			next, err := s.upgradeTo(ctx, c, u)
			u.result <- err
			if c = next; c == nil {
				return err
			}
		case m, alive := <-c.said:
			if alive && m.Verb == ended {
				err := m.err()
				return errors.Join(err, s.wait(c))
			}
			if alive {
				continue
			}
			next, err := s.replace(ctx, c)
			if next == nil {
				return err
			}
			c = next
		}
	}
}

// wait waits for the end of a daemon that has ended its mount.
func (s *supervisor) wait(c *child) error {
	for range c.said { // it says nothing more
	}
	return nil
}

// replace starts the next daemon after a crash.
func (s *supervisor) replace(ctx context.Context, dead *child) (*child, error) {
	s.bury(dead)
	if ctx.Err() != nil {
		return nil, errors.Join(fmt.Errorf("the daemon of the mount ended while it unmounted: %w", dead.exit), s.mount.Abort(), fuse.Detach(s.dir))
	}
	now := time.Now()
	s.crashes = append(s.crashes, now)
	for now.Sub(s.crashes[0]) > crashTime {
		s.crashes = s.crashes[1:]
	}
	if len(s.crashes) >= maxCrashes {
		err := fmt.Errorf("the daemon of the mount on %s crashed %d times in %v; calls on the mount fail from here on; the last crash: %w",
			s.dir, len(s.crashes), crashTime, dead.exit)
		return nil, errors.Join(err, s.mount.Abort())
	}
	s.log.Error("the daemon of the mount crashed; the supervisor starts the next one", "dir", s.dir, "pid", dead.pid(), "err", dead.exit, "crashes", len(s.crashes))
	return s.restart(ctx, s.binary, now)
}

// restart starts a daemon, again and again while it cannot serve.
func (s *supervisor) restart(ctx context.Context, binary *os.File, since time.Time) (*child, error) {
	for pause := firstRestart; ; pause = min(2*pause, lastRestart) {
		c, err := s.start(ctx, binary)
		if err == nil {
			return c, nil
		}
		if ctx.Err() != nil {
			return nil, errors.Join(err, s.mount.Abort(), fuse.Detach(s.dir))
		}
		if time.Since(since) > startPatience {
			err = fmt.Errorf("no daemon of the mount on %s could begin for %v; calls on the mount fail from here on; the last error: %w", s.dir, startPatience, err)
			return nil, errors.Join(err, s.mount.Abort())
		}
		s.log.Error("the daemon of the mount could not begin; the supervisor tries again", "dir", s.dir, "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// bury ends what a dead daemon has left in the kernel: calls that it took are sent to the next one, or,
// before Linux 6.9, end with ECONNABORTED.
func (s *supervisor) bury(c *child) {
	if err := s.mount.Resend(); errors.Is(err, moraine.Unimplemented) {
		s.log.Warn("calls that were under way have failed", "dir", s.dir, "err", err)
	} else if err != nil {
		s.log.Error("calls that were under way may wait for ever: unmount and mount again", "dir", s.dir, "err", err)
	}
	_ = c.kernel.Close()
}
