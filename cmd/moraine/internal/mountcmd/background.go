package mountcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
)

// The background process is this program again, with the same command line: Go cannot fork.
// The file at readyFD reports the result to its parent: the line readyLine, or the text of
// the error, or nothing where the process died.

const (
	readyFD   = 3
	readyLine = "ready"
)

// MountInBackground starts the process that serves the mount. It returns when the process
// is ready, or with the reason why it is not.
func MountInBackground(ctx context.Context, env *cli.Env, o MountOptions, loc cli.Location, dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if o.LogFile == "" {
		if o.LogFile, err = mountFile(dir, ".log"); err != nil {
			return err
		}
	}
	log, err := os.OpenFile(o.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("--log-file: %w", err)
	}
	defer log.Close()
	ready, notify, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	cmd := exec.Command(self, env.Args...)
	cmd.Args[0] = "moraine" // not the name of a helper of mount(8), whose arguments differ
	cmd.Env = append(os.Environ(), fmt.Sprintf("MORAINE_MOUNT_READY_FD=%d", readyFD))
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{notify}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	_ = notify.Close() // the child's error is the one that counts
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer stop()
	answer, err := io.ReadAll(ready)
	if err != nil {
		return err
	}
	text := strings.TrimSpace(string(answer))
	if text == readyLine {
		pid := cmd.Process.Pid
		mounted(env, loc, dir, o.LogFile, pid)
		return cmd.Process.Release()
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); text == "" {
		return fmt.Errorf("the background process ended (%v); its log is %s", err, o.LogFile)
	} else if errors.As(err, &exit) && exit.ExitCode() == cli.ExitWrongUse {
		return cli.UsageError("%s", text)
	}
	return errors.New(text)
}

// mounted prints where the cluster is mounted, and by which process.
func mounted(env *cli.Env, loc cli.Location, dir, log string, pid int) {
	if env.Global.JSON {
		_ = cli.PrintJSON(env.Out, map[string]any{"source": loc.String(), "dir": dir, "pid": pid, "log": log})
		return
	}
	env.Note("%s is mounted on %s, served by process %d (log: %s).", loc, dir, pid, log)
}

// mountForParent serves the mount in the background process.
func mountForParent(ctx context.Context, env *cli.Env, o MountOptions, loc cli.Location, dir string, serve serveFunc) error {
	parent := os.NewFile(uintptr(o.readyFD), "ready")
	if parent == nil {
		return cli.UsageError("--ready-fd %d", o.readyFD)
	}
	syscall.CloseOnExec(o.readyFD)
	var tellErr error
	tell := func(text string) {
		if parent == nil {
			return
		}
		_, err := fmt.Fprintln(parent, text)
		tellErr = errors.Join(err, parent.Close(), os.Chdir("/"))
		parent = nil
	}
	err := serve(ctx, env, o, loc, dir, func() { tell(readyLine) })
	if err != nil {
		tell(strings.Join(cli.ErrorLines(err), "; "))
	}
	return errors.Join(err, tellErr)
}

// mountFile names a file beside the others of the mount on dir: in /run/moraine for root,
// else in the user's runtime directory.
func mountFile(dir, suffix string) (string, error) {
	base := "/run/moraine"
	if os.Geteuid() != 0 {
		if base = os.Getenv("XDG_RUNTIME_DIR"); base == "" {
			base = filepath.Join(os.TempDir(), fmt.Sprintf("moraine-%d", os.Getuid()))
		} else {
			base = filepath.Join(base, "moraine")
		}
	}
	if err := privateDirectory(base); err != nil {
		return "", err
	}
	name := strings.NewReplacer("%", "%25", "/", "%2F").Replace(dir)
	if len(name) > maxMountName {
		return "", fmt.Errorf("%s: the path is too long for a mount: give --log-file, or a shorter "+
			"directory", dir)
	}
	return filepath.Join(base, "mount"+name+suffix), nil
}

// privateDirectory makes a directory, if it is missing. It refuses one that
// another user made, or may write to. That user could have replaced a log by a
// link to any file.
func privateDirectory(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	owner, ok := st.Sys().(*syscall.Stat_t)
	if !st.IsDir() || !ok || int(owner.Uid) != os.Geteuid() || st.Mode().Perm()&0o022 != 0 {
		return &moraine.Error{Ref: dir, Kind: moraine.PermissionDenied, Err: errors.New("this directory is for logs and records of mounts, " +
			"and must belong to the user who mounts, with no other user able to write to it: remove it, or set XDG_RUNTIME_DIR")}
	}
	return nil
}

// maxMountName leaves room for the rest of a file's name.
const maxMountName = 240
