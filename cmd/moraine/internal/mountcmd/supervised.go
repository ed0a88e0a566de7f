package mountcmd

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"syscall"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/fuse"
)

// serveSupervised is the daemon of a supervisor. After the socket, the supervisor gave it its
// connection to the kernel, the state of the mount, and the record.
func serveSupervised(ctx context.Context, env *cli.Env, o MountOptions, loc cli.Location, dir string) error {
	files := make([]*os.File, len(daemonFiles))
	for i, name := range daemonFiles {
		fd := o.daemonFD + i
		syscall.CloseOnExec(fd)
		if files[i] = os.NewFile(uintptr(fd), name); files[i] == nil {
			return cli.UsageError("--daemon-fd %d", o.daemonFD)
		}
	}
	l, err := linkOf(files[0])
	if err != nil {
		return err
	}
	_ = os.WriteFile("/proc/self/comm", []byte("moraine"), 0) // the program was started by its descriptor
	ctx, end := context.WithCancel(ctx)
	defer end()
	d := &daemonProcess{link: l, end: end, record: &mountRecord{file: files[3]}}
	err = d.serve(ctx, env, o, loc, dir, files[1], files[2])
	if l.send(failure(ended, err)) != nil { // there is no supervisor any more
		d.record.end(err)
	}
	return err
}

// daemonFiles are what a daemon gets, in the order of their descriptors.
var daemonFiles = []string{"link", "/dev/fuse", "state of a mount", "record of a mount"}

// daemonProcess is this process, as a daemon of a supervisor.
type daemonProcess struct {
	link   *link
	end    context.CancelFunc // unmounts
	record *mountRecord
	log    *slog.Logger
}

func (d *daemonProcess) serve(ctx context.Context, env *cli.Env, o MountOptions, loc cli.Location, dir string, kernel, state *os.File) (err error) {
	if d.log, err = env.Log(); err != nil {
		return err
	}
	if _, err := o.clientConfig(); err != nil {
		return err
	}
	if err := d.record.read(); err != nil {
		return err
	}
	device, err := fuse.OpenDevice(kernel, state)
	if err != nil {
		return err
	}
	cfg, err := o.fuseConfig(loc, dir)
	if err != nil {
		return err
	}
	if err := device.Check(cfg, d.log); err != nil {
		return err
	}
	if err := d.link.send(message{Verb: prepared}); err != nil {
		return err
	}
	m, err := d.link.receive()
	if err != nil || m.Verb != begin {
		return errors.Join(errors.New("the supervisor does not need this daemon"), err)
	}
	if err := device.Begin(); err != nil {
		return err
	}
	mounts := make(chan *fuse.Mount, 1)
	go d.obey(ctx, mounts)
	return serveDevice(ctx, env, o, loc, dir, device, func(m *fuse.Mount) {
		mounts <- m
		if err := d.link.send(message{Verb: ready}); err == nil {
			_ = os.Chdir("/")
		}
	})
}

// obey does what the supervisor says, until it ends.
func (d *daemonProcess) obey(ctx context.Context, mounts <-chan *fuse.Mount) {
	var mount *fuse.Mount
	for {
		m, err := d.link.receive()
		if err != nil {
			d.log.Warn("the supervisor of the mount has ended; if this process crashes now, the mount ends", "err", err)
			d.record.Pid = os.Getpid()
			if err := d.record.write(); err != nil {
				d.log.Warn("moraine umount --force will not find this process", "err", err)
			}
			return
		}
		switch m.Verb {
		case stop:
			d.end()
		case drain:
			if mount == nil {
				mount = <-mounts
			}
			if err := mount.Drain(ctx); err != nil {
				_ = d.link.send(failure(busy, err))
			} else if d.link.send(message{Verb: drained}) == nil {
				os.Exit(cli.ExitFine) // the session, and all that it owns, is now the next daemon's
			}
		}
	}
}
