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
)

// NewUmountCommand returns `moraine umount`.
func NewUmountCommand(env *cli.Env) *cobra.Command {
	var lazy bool
	cmd := &cobra.Command{
		Use:     "umount DIR",
		GroupID: cli.GroupFiles,
		Short:   "Unmount a directory",
		Long: `Unmount DIR and wait until its process has written everything and ended. The command fails
where files below DIR are open or a process works there, and names them. --lazy removes the
mount from view at once; open files stay usable until they are closed. The command also
unmounts a mount whose process has died ("Transport endpoint is not connected").`,
		Example: "  moraine umount /mnt/moraine",
		Args:    cobra.ExactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return Unmount(cmd.Context(), env, args[0], lazy) },
	}
	cmd.Flags().BoolVar(&lazy, "lazy", false, "do not wait for open files")
	return cmd
}

// Unmount ends the mount at a directory, with lazy also where it is in use.
func Unmount(ctx context.Context, env *cli.Env, arg string, lazy bool) error {
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
	if lazy {
		return fuse.Detach(dir)
	}
	if err := fuse.Unmount(dir); err != nil {
		if errors.Is(err, moraine.Busy) {
			err = fmt.Errorf("%s is in use by %s: end them, or give --lazy", dir, users(dir))
		}
		return err
	}
	if record == nil {
		return nil
	}
	defer record.file.Close()
	return record.wait(ctx)
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
