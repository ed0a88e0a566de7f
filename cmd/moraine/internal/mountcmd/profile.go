package mountcmd

import (
	"context"
	"errors"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
)

// NewProfileCommand returns `moraine profile`.
func NewProfileCommand(env *cli.Env) *cobra.Command {
	var (
		length time.Duration
		out    string
	)
	cmd := &cobra.Command{
		Use:     "profile DIR",
		GroupID: cli.GroupFiles,
		Short:   "Write a CPU profile of a mount's process, and show which operations took the time",
		Long: `Profile the process of the mount DIR for some seconds. The CPU profile goes to --out, for
"go tool pprof". The command prints the operations of that time, and how long they took together.
Only the user who mounted DIR, and root, may do that.`,
		Example: `  moraine profile /mnt/moraine --for 30s --out mount.pprof
  go tool pprof -top mount.pprof`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if length <= 0 || length > maxProfile {
				return cli.UsageError("--for is longer than 0, and %v at most", maxProfile)
			}
			d, err := findDaemon(args[0])
			if err != nil {
				return err
			}
			return profileMount(cmd.Context(), env, d, length, out)
		},
	}
	cmd.Flags().DurationVar(&length, "for", 10*time.Second, "how long")
	cmd.Flags().StringVar(&out, "out", "moraine-mount.pprof", "file for the CPU profile")
	return cmd
}

// profileMount writes the profile beside its name first: a profile that is cut short replaces none.
func profileMount(ctx context.Context, env *cli.Env, d *daemon, length time.Duration, out string) (err error) {
	was, err := d.status(ctx)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(out), ".moraine-profile-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if err := errors.Join(d.profile(ctx, length, f), f.Close()); err != nil {
		return err
	}
	now, err := d.status(ctx)
	if err != nil {
		return err
	}
	if err := os.Rename(f.Name(), out); err != nil {
		return err
	}
	s := statsOf(was, now)
	if env.Global.JSON {
		return cli.PrintJSON(env.Out, struct {
			mountStats
			Profile string `json:"profile"`
		}{s, out})
	}
	operationTable(env, s.By)
	env.Note("The CPU profile is %s; `go tool pprof -top %s` shows it.", out, out)
	return nil
}

// profile copies a profile of the process to w.
func (d *daemon) profile(ctx context.Context, length time.Duration, w io.Writer) error {
	body, err := d.get(ctx, "/profile", url.Values{"for": {length.String()}})
	if err != nil {
		return err
	}
	_, err = io.Copy(w, io.LimitReader(body, maxProfileSize))
	return errors.Join(err, body.Close())
}
