package fuse

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/fuse/handover"
	"golang.org/x/sys/unix"
)

// A mount outlives its daemon if another process, its supervisor, has the connection to the kernel
// open too. The supervisor mounts (Attach), and gives each daemon a Device. The kernel sends its first
// request, INIT, once. The library wants to read it from each connection, so a daemon gives it one end
// of a socket pair with that request, and then puts the device in its place.

var errOtherInit = errors.New("this version agrees on other features with the kernel than the one that mounted: unmount, and mount again")

// agreed returns the answer of this version to an INIT request.
func agreed(cfg Config, log *slog.Logger, init []byte) ([]byte, error) {
	_, fd, reply, err := replay(gofuse.NewDefaultRawFileSystem(), cfg.options(log), init)
	if err != nil {
		return nil, err
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(null)
	return reply, unix.Dup3(null, fd, unix.O_CLOEXEC) // the library owns the number
}

// replay makes a server that has answered an INIT request, and returns the number of its descriptor.
func replay(fs gofuse.RawFileSystem, opts *gofuse.MountOptions, init []byte) (server *gofuse.Server, fd int, reply []byte, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, 0, nil, fmt.Errorf("socketpair: %w", err)
	}
	defer unix.Close(pair[1])
	if _, err := unix.Write(pair[1], init); err != nil {
		return nil, 0, nil, errors.Join(err, unix.Close(pair[0]))
	}
	opts.DirectMount = false
	if server, err = gofuse.NewServer(fs, "/dev/fd/"+strconv.Itoa(pair[0]), opts); err != nil {
		return nil, 0, nil, err // the library has closed it
	}
	reply = make([]byte, len(handover.Header{}.Reply))
	n, err := unix.Read(pair[1], reply)
	return server, pair[0], reply[:max(0, n)], err
}

// Device is the kernel's side of a mount that a supervisor has made, for one daemon.
type Device struct {
	file          *os.File
	state         *handover.State
	slots         []handover.At
	header        *os.File
	init, reply   []byte
	life, session uint64
	nonce         [16]byte
}

// OpenDevice reads the state of a mount for the next daemon. device is a connection to the kernel,
// which the Mount takes.
func OpenDevice(device, state *os.File) (*Device, error) {
	h, err := handover.ReadHeader(state)
	if err != nil {
		return nil, err
	}
	return &Device{file: device, header: state, init: h.Init[:h.InitLen], reply: h.Reply[:h.ReplyLen]}, nil
}

// Begin begins the life of this daemon. Before, the one before it has ended.
func (d *Device) Begin() (err error) {
	if d.state, d.slots, err = handover.Open(d.header); err != nil {
		return err
	}
	return handover.Update(d.header, func(h *handover.Header) {
		h.Life++
		d.life, d.session, d.nonce = h.Life, h.Session, h.Nonce
	})
}

// Check fails if this version would not agree with the kernel on what the mount was made with.
func (d *Device) Check(cfg Config, log *slog.Logger) error {
	cfg.setDefaults()
	reply, err := agreed(cfg, cmp.Or(log, slog.New(slog.DiscardHandler)), d.init)
	if err == nil && !bytes.Equal(reply, d.reply) {
		err = &moraine.Error{Op: "mount", Ref: cfg.Dir, Kind: moraine.Unimplemented, Err: errOtherInit}
	}
	return err
}

// Restarts returns how many daemons were before this one.
func (d *Device) Restarts() uint64 { return d.life - 1 }

// Resume is how the client of this daemon follows that of the one before.
func (d *Device) Resume() *client.Resume {
	r := &client.Resume{Nonce: d.nonce, Life: d.life}
	for _, at := range d.slots {
		if at.Kind == handover.Paged {
			r.Copies = append(r.Copies, moraine.InodeID(at.Inode))
		}
	}
	r.Opened = func(nonce [16]byte, session moraine.SessionID) {
		// An error leaves the next daemon without the session, as after its end.
		_ = handover.Update(d.header, func(h *handover.Header) { h.Nonce, h.Session = nonce, uint64(session) })
	}
	return r
}

// connect is mount for a daemon.
func (m *Mount) connect(fs gofuse.RawFileSystem) (*gofuse.Server, error) {
	server, fd, reply, err := replay(fs, m.cfg.options(m.fs.log), m.device.init)
	if err == nil && !bytes.Equal(reply, m.device.reply) {
		err = errOtherInit
	}
	if err == nil {
		err = unix.Dup3(int(m.device.file.Fd()), fd, unix.O_CLOEXEC)
	}
	if err == nil {
		err = m.device.file.Close()
	}
	if err != nil {
		return nil, &moraine.Error{Op: "mount", Ref: m.cfg.Dir, Kind: moraine.IOError, Err: err}
	}
	return server, nil
}
