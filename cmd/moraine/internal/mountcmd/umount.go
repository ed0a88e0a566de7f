package mountcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/fuse"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// NewUmountCommand returns `moraine umount`.
func NewUmountCommand(env *cli.Env) *cobra.Command {
	var o UmountOptions
	cmd := &cobra.Command{
		Use:     "umount DIR",
		GroupID: cli.GroupFiles,
		Short:   "Unmount a directory",
		Long: `Unmount DIR and wait until its process has written everything and ended. The command fails
where files below DIR are open or a process works there, and names them. --lazy removes the
mount from view at once; open files stay usable until they are closed. --force also ends its
process, after what was written is committed, or cannot be within the mount's --patience. Calls
that wait, as a read for servers that are down, then fail, and so do later calls on files that
are still open. The command also unmounts a mount whose process has died ("Transport endpoint is not connected").`,
		Example: "  moraine umount /mnt/moraine",
		Args:    cobra.ExactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return Unmount(cmd.Context(), env, args[0], o) },
	}
	cmd.Flags().BoolVar(&o.Lazy, "lazy", false, "do not wait for open files")
	cmd.Flags().BoolVar(&o.Force, "force", false, "end the mount also where files are open or calls wait")
	cmd.MarkFlagsMutuallyExclusive("lazy", "force")
	return cmd
}

// UmountOptions are the flags of `moraine umount`.
type UmountOptions struct {
	// Lazy removes the mount from view also where it is in use. Force ends its process too.
	Lazy, Force bool
}

// Unmount ends the mount at a directory.
func Unmount(ctx context.Context, env *cli.Env, arg string, o UmountOptions) error {
	dir, err := filepath.Abs(arg)
	if err != nil {
		return err
	}
	mounted, err := fuse.IsMounted(dir)
	if err != nil {
		return err
	}
	if !mounted {
		return &moraine.Error{Ref: dir, Kind: moraine.NotFound, Err: errors.New("no mount of moraine " +
			"is there; /proc/mounts lists all")}
	}
	record, err := findMountRecord(dir)
	if err != nil {
		return err
	}
	if isDead(dir, record) {
		if err := fuse.Detach(dir); err != nil {
			return err
		}
		env.Note("The mount on %s had lost its process; the command has unmounted it.", dir)
		return nil
	}
	if o.Lazy {
		return fuse.Detach(dir)
	}
	if o.Force && record != nil {
		return record.force(ctx, env)
	}
	if o.Force {
		return fmt.Errorf("%s: the record of the mount's process is missing: end that process, or give --lazy", dir)
	}
	if err := fuse.Unmount(dir); err != nil {
		if errors.Is(err, moraine.Busy) {
			err = fmt.Errorf("%s is in use by %s: end them, or give --lazy or --force", dir, users(dir))
		}
		return err
	}
	if record == nil {
		return nil
	}
	defer record.file.Close()
	return record.wait(ctx)
}

// force ends the process of the mount as a signal from outside does: it detaches the mount, commits
// what was written, and then disconnects the files that are still open.
func (r *mountRecord) force(ctx context.Context, env *cli.Env) error {
	defer r.file.Close()
	process, err := unix.PidfdOpen(r.Pid, 0)
	if err != nil {
		return fmt.Errorf("process %d that serves %s: %w", r.Pid, r.Dir, err)
	}
	defer unix.Close(process)
	// The lock shows that the process with this number is still the one of the record.
	if r.held() {
		if err := unix.PidfdSendSignal(process, unix.SIGTERM, nil, 0); err != nil {
			return fmt.Errorf("process %d that serves %s: %w", r.Pid, r.Dir, err)
		}
	}
	err = r.wait(ctx)
	if err != nil && r.Disconnected {
		env.Note("%v", err)
		return nil
	}
	return err
}

// isDead reports whether the process of a mount has ended. Its record shows it. Without a
// record, the command makes a call to the mount, which waits where the cluster does not
// answer.
func isDead(dir string, record *mountRecord) bool {
	if record == nil {
		return fuse.IsDead(dir)
	}
	return !record.held()
}

// maxUsers bounds how many processes the error names.
const maxUsers = 5

// users names the processes that have files open below dir, as far as this process can see
// them.
func users(dir string) string {
	procs, _ := filepath.Glob("/proc/[0-9]*")
	var found []string
	for _, p := range procs {
		if !uses(p, dir) {
			continue
		}
		name, _ := os.ReadFile(filepath.Join(p, "comm"))
		found = append(found, fmt.Sprintf("process %s (%s)", filepath.Base(p), strings.TrimSpace(string(name))))
	}
	switch n := len(found); {
	case n == 0:
		return "processes of other users"
	case n > maxUsers:
		return fmt.Sprintf("%s and %d more", strings.Join(found[:maxUsers], ", "), n-maxUsers)
	}
	return strings.Join(found, ", ")
}

// uses reports whether a process has its working directory, its root, or an open
// or mapped file below dir.
func uses(proc, dir string) bool {
	links, _ := filepath.Glob(filepath.Join(proc, "fd", "*"))
	mapped, _ := filepath.Glob(filepath.Join(proc, "map_files", "*"))
	for _, l := range append(append(links, mapped...), filepath.Join(proc, "cwd"), filepath.Join(proc, "root")) {
		if to, err := os.Readlink(l); err == nil && (to == dir || strings.HasPrefix(to, dir+"/")) {
			return true
		}
	}
	return false
}
