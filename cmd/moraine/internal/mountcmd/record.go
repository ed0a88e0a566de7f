package mountcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"golang.org/x/sys/unix"
)

// mountRecord is a file that names the process that serves a mount. The process keeps its
// lock until it ends, in whatever way. An unmount waits for the lock. Then it knows that
// all is written, or reads in the file why it is not.
type mountRecord struct {
	file *os.File

	Pid    int    `json:"pid"`
	Dir    string `json:"dir"`
	Source string `json:"source"`
	// Error is the error with which the process ended.
	Error string `json:"error,omitempty"`
	// Disconnected says that the error is only that files were still open at the end.
	Disconnected bool `json:"disconnected,omitempty"`
}

// openMountRecord writes the record of the mount that this process will serve.
func openMountRecord(dir, source string) (*mountRecord, error) {
	name, err := mountFile(dir, ".json")
	if err != nil {
		return nil, err
	}
	// A process that ends without an error removes its record. A record here may be of a
	// process that still ends: that process keeps the file that it has open.
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("another mount on %s is in progress: %w", dir, err)
	}
	r := &mountRecord{file: f, Pid: os.Getpid(), Dir: dir, Source: source}
	if err := errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), r.write()); err != nil {
		_ = f.Close()
		return nil, err
	}
	return r, nil
}

func (r *mountRecord) write() error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := r.file.Truncate(0); err != nil {
		return err
	}
	_, err = r.file.WriteAt(append(data, '\n'), 0)
	return err
}

// end notes how the process ends. It removes only a record without an error.
func (r *mountRecord) end(err error) {
	if err != nil {
		r.Error, r.Disconnected = strings.Join(cli.ErrorLines(err), "; "), onlyBusy(err)
		_ = r.write() // the log has it too
	} else if st, serr := r.file.Stat(); serr == nil {
		// A later mount may have put its own record there.
		if now, nerr := os.Stat(r.file.Name()); nerr == nil && os.SameFile(st, now) {
			_ = os.Remove(r.file.Name())
		}
	}
	// The process's end releases the lock: this copy is never closed.
	_, _ = unix.Dup(int(r.file.Fd()))
	_ = r.file.Close()
}

// onlyBusy reports whether each part of an error is that the mount was in use.
func onlyBusy(err error) bool {
	if parts, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(parts.Unwrap(), func(e error) bool { return !onlyBusy(e) })
	}
	return moraine.KindOf(err) == moraine.Busy
}

// findMountRecord opens the record of the mount on dir; nil where there is none.
func findMountRecord(dir string) (*mountRecord, error) {
	name, err := mountFile(dir, ".json")
	if err != nil {
		return nil, err
	}
	f, err := os.Open(name)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return nil, nil // a mount of another program
	}
	if err != nil {
		return nil, err
	}
	r := &mountRecord{file: f}
	return r, r.read()
}

func (r *mountRecord) read() error {
	st, err := r.file.Stat()
	if err != nil {
		return err
	}
	data := make([]byte, st.Size())
	if _, err := r.file.ReadAt(data, 0); err != nil && len(data) > 0 {
		return err
	}
	if err := json.Unmarshal(data, r); err != nil {
		return fmt.Errorf("%s: %w", r.file.Name(), err)
	}
	return nil
}

// held reports whether the process that serves the mount still runs: it has the lock.
func (r *mountRecord) held() bool {
	if err := unix.Flock(int(r.file.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		return errors.Is(err, unix.EWOULDBLOCK)
	}
	_ = unix.Flock(int(r.file.Fd()), unix.LOCK_UN) // otherwise the file's end releases it
	return false
}

// wait returns when the process has ended, with its error.
func (r *mountRecord) wait(ctx context.Context) error {
	for {
		err := unix.Flock(int(r.file.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("process %d has not ended yet: %w", r.Pid, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
	if err := r.read(); err != nil {
		return err
	}
	if r.Error != "" {
		return fmt.Errorf("process %d that served %s ended with: %s", r.Pid, r.Dir, r.Error)
	}
	return nil
}
