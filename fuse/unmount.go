package fuse

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/morainefs/moraine"
	"golang.org/x/sys/unix"
)

// readOnlyFlags are the flags of a read-only mount; every mount has the first two.
const readOnlyFlags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_RDONLY

// end detaches the mount, commits the written bytes, and waits until the mount
// has no users, or until the patience ends. A mount that then remains without
// an open file is not an error. A process in another mount namespace (a
// container that began meanwhile) or a working directory keeps it, and loses
// nothing.
func (m *Mount) end(server *gofuse.Server, served <-chan struct{}) error {
	m.fs.ended.Store(true)
	err := Detach(m.cfg.Dir)
	if err != nil {
		m.fs.log.Error("mount detach failed", "dir", m.cfg.Dir, "err", err)
	}
	flushed := m.fs.files.flushAll(m.fs.life)
	select {
	case <-served:
		return errors.Join(err, flushed)
	case <-time.After(m.cfg.EndPatience):
	}
	open := m.fs.files.count()
	if open == 0 {
		m.fs.log.Info("mount ended while another mount namespace or a working directory still used it", "dir", m.cfg.Dir)
		return errors.Join(err, flushed)
	}
	m.fs.log.Warn("open files disconnected", "dir", m.cfg.Dir, "files", open)
	return errors.Join(err, m.fs.files.flushAll(m.fs.life), &moraine.Error{Op: "unmount", Ref: m.cfg.Dir, Kind: moraine.Busy,
		Err: fmt.Errorf("%d files were still open after %v: the mount disconnected them; earlier writes are committed", open, m.cfg.EndPatience)})
}

// Detach removes a mount from the directory tree at once. Open files stay usable as
// long as the process that serves them lives.
func Detach(dir string) error { return unmount(dir, unix.MNT_DETACH, "-uz") }

// Unmount unmounts dir; Busy if it is in use.
func Unmount(dir string) error { return unmount(dir, 0, "-u") }

func unmount(dir string, flags int, helperFlag string) error {
	err := unix.Unmount(dir, flags|unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EPERM) {
		err = helperUnmount(dir, helperFlag)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EBUSY):
		return &moraine.Error{Op: "unmount", Ref: dir, Kind: moraine.Busy, Err: errors.New("it is in use")}
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
		return &moraine.Error{Op: "unmount", Ref: dir, Kind: moraine.NotFound, Err: errors.New("nothing is mounted there")}
	}
	return &moraine.Error{Op: "unmount", Ref: dir, Kind: moraine.IOError, Err: err}
}

// helperUnmount unmounts as a user other than root.
func helperUnmount(dir, flag string) error {
	out, err := exec.Command("fusermount3", flag, dir).CombinedOutput()
	if err == nil {
		return nil
	}
	text := strings.TrimSpace(string(out))
	if strings.Contains(text, "busy") {
		return unix.EBUSY
	}
	return fmt.Errorf("fusermount3: %w: %s", err, text)
}

// IsDead reports whether dir has a mount whose process has ended: every call there
// returns ENOTCONN until it is detached.
func IsDead(dir string) bool {
	var st unix.Stat_t
	return errors.Is(unix.Stat(dir, &st), unix.ENOTCONN)
}

// IsMounted reports whether a file system of this kind is mounted at dir, dead or
// alive.
func IsMounted(dir string) (bool, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false, err
	}
	// 36 35 98:0 / /mnt rw,noatime - fuse.moraine source options
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) > 4 && unescapeMount(fields[4]) == dir && strings.Contains(line, " - fuse."+fsType+" ") {
			return true, nil
		}
	}
	return false, nil
}

// unescapeMount undoes the kernel's escapes of blanks and backslashes.
func unescapeMount(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// raiseReadahead lets the kernel read ahead of a mapped file in whole requests. The
// kernel gives a new mount 128 KiB, whatever is negotiated. It makes no call to the mount: a
// process that is killed while it waits for itself does not end.
func raiseReadahead(dir string, log *slog.Logger) {
	m, err := MountOf(dir)
	if err == nil {
		err = os.WriteFile(filepath.Join("/sys/class/bdi", m.device, "read_ahead_kb"), fmt.Appendf(nil, "%d", maxRequest>>10), 0o644)
	}
	if err != nil {
		log.Debug("read-ahead stays at 128 KiB", "err", err)
	}
}

// closeOnExec keeps the FUSE device from the children of this process: the library
// opens it without O_CLOEXEC. A child that inherits it keeps the mount alive after
// this process is killed, and calls on the mount then wait for ever.
func closeOnExec(log *slog.Logger) {
	for _, fd := range devices(log) {
		unix.CloseOnExec(fd)
	}
}

// devices returns the FUSE devices that this process has open.
func devices(log *slog.Logger) (all []int) {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		log.Warn("FUSE device stays inheritable", "err", err)
	}
	for _, e := range fds {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && to == "/dev/fuse" {
			all = append(all, fd)
		}
	}
	return all
}
