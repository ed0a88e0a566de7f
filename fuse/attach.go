package fuse

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"unsafe"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/fuse/handover"
	"golang.org/x/sys/unix"
)

// Attachment is a mount, for its supervisor.
type Attachment struct {
	// device is a connection to the kernel. The mount ends when all connections are closed.
	device *os.File
	// State is what daemons leave for the next one (package handover).
	State *os.File

	dir    string
	number string // of the mount, as MountOf says; "": unknown
}

// Attach mounts. It serves nothing: until a daemon does, calls on the mount wait.
func Attach(cfg Config, log *slog.Logger) (*Attachment, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	failed := func(err error) (*Attachment, error) {
		return nil, &moraine.Error{Op: "mount", Ref: cfg.Dir, Kind: moraine.IOError, Err: err}
	}
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	server, err := gofuse.NewServer(gofuse.NewDefaultRawFileSystem(), cfg.Dir, cfg.options(log))
	if err != nil {
		return failed(err)
	}
	fds := devices(log)
	if len(fds) != 1 {
		return failed(errors.Join(fmt.Errorf("the process has %d FUSE devices open, and not 1", len(fds)), Detach(cfg.Dir)))
	}
	init := server.KernelSettings()
	h := handover.Header{}
	init.Length = uint32(unsafe.Sizeof(*init))
	var b bytes.Buffer
	if err := binary.Write(&b, binary.NativeEndian, init); err != nil {
		return failed(errors.Join(err, Detach(cfg.Dir)))
	}
	h.InitLen = uint32(copy(h.Init[:], b.Bytes()))
	reply, err := agreed(cfg, log, b.Bytes())
	if err != nil {
		return failed(errors.Join(err, Detach(cfg.Dir)))
	}
	h.ReplyLen = uint32(copy(h.Reply[:], reply))
	if _, err := rand.Read(h.Nonce[:]); err != nil {
		return failed(errors.Join(err, Detach(cfg.Dir)))
	}
	state, err := handover.Create(h)
	if err != nil {
		return failed(errors.Join(err, Detach(cfg.Dir)))
	}
	// The library closes its descriptor when it collects the server, which nobody needs.
	fd, err := unix.FcntlInt(uintptr(fds[0]), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return failed(errors.Join(err, state.Close(), Detach(cfg.Dir)))
	}
	m, _ := MountOf(cfg.Dir)
	return &Attachment{device: os.NewFile(uintptr(fd), fuseDevice), State: state, dir: cfg.Dir, number: m.device}, nil
}

// Connect opens a connection to the kernel for one daemon. The kernel keeps apart which requests each
// connection took.
func (a *Attachment) Connect() (*os.File, error) {
	fd, err := unix.Open(fuseDevice, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		if err = unix.IoctlSetPointerInt(fd, ioctlClone, int(a.device.Fd())); err == nil {
			return os.NewFile(uintptr(fd), fuseDevice), nil
		}
		_ = unix.Close(fd)
	}
	// The user may not open the device. Then all daemons share the first connection.
	if fd, err = unix.FcntlInt(a.device.Fd(), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("%s: %w", fuseDevice, err)
	}
	return os.NewFile(uintptr(fd), fuseDevice), nil
}

// Resend has the kernel send the requests once more that a daemon took and did not answer. No daemon
// may serve meanwhile, but threads of a dead one may still wait in the kernel. Kernels before Linux 6.9 cannot do it: there Unimplemented.
func (a *Attachment) Resend() error {
	var b [16]byte // a header of an answer to no request, with the notification as its error
	binary.NativeEndian.PutUint32(b[0:], uint32(len(b)))
	binary.NativeEndian.PutUint32(b[4:], notifyResend)
	_, err := unix.Write(int(a.device.Fd()), b[:])
	switch {
	case errors.Is(err, unix.EINVAL):
		return &moraine.Error{Op: "resend", Kind: moraine.Unimplemented, Err: errors.New("the kernel is older than Linux 6.9")}
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV): // it is unmounted
		return nil
	}
	return err
}

// Abort has all calls on the mount fail with ENOTCONN from here on, and leaves the mount where it is.
// The end of all connections does the same, but a dead process that does not end may have one open. A
// mount that is detached stays as it is.
func (a *Attachment) Abort() error {
	m, err := MountOf(a.dir)
	if err != nil || m.Dir != a.dir || m.device != a.number {
		return nil // another mount may have its number
	}
	// In use: what is below the directory must not appear.
	fd, err := unix.Open(a.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("abort the mount on %s: %w", a.dir, err)
	}
	defer unix.Close(fd)
	err = unix.Unmount(a.dir, unix.MNT_FORCE|unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EPERM) { // the user who mounted may do it in another way
		_, minor, _ := strings.Cut(a.number, ":")
		err = os.WriteFile("/sys/fs/fuse/connections/"+minor+"/abort", []byte("1"), 0)
	}
	if err != nil && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("abort the mount on %s: %w", a.dir, err)
	}
	return nil
}

const (
	fuseDevice = "/dev/fuse"
	// ioctlClone is FUSE_DEV_IOC_CLONE, and notifyResend FUSE_NOTIFY_RESEND.
	ioctlClone   = 0x8004e500
	notifyResend = 7
)
