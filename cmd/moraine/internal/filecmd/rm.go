package filecmd

import (
	"context"
	"errors"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
)

func newRmCommand(env *cli.Env) *cobra.Command {
	var recursive, force, checkpoints bool
	cmd := &cobra.Command{
		Use:     "rm PATH...",
		GroupID: cli.GroupFiles,
		Short:   "Remove files (with -r: whole trees)",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.Each(cmd.Context(), args, cli.ParseRemote, func(c *cli.Connection, l cli.Location) error {
				if l.Path == "/" {
					return cli.UsageError("rm: %s is the root of the cluster: name files or directories in "+
						"it", l)
				}
				err := removeOne(cmd.Context(), c, l, recursive, client.RemoveAllOptions{Checkpoints: checkpoints})
				if force && errors.Is(err, moraine.NotFound) {
					return nil
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "remove directories with all their "+
		"contents")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "no error for a path that does not exist")
	cmd.Flags().BoolVar(&checkpoints, "checkpoints", false, "with -r: remove a tree with committed "+
		"checkpoints too, and a run's last good one")
	return cmd
}

func removeOne(ctx context.Context, c *cli.Connection, l cli.Location, recursive bool, opts client.RemoveAllOptions) error {
	attr, err := c.Lstat(ctx, l.Path)
	if err != nil {
		return err
	}
	if recursive {
		return c.RemoveAllWith(ctx, l.Path, opts)
	}
	if attr.IsDir() {
		return cli.UsageError("rm: %s is a directory: give -r to remove it with all its contents", l)
	}
	return c.Remove(ctx, l.Path)
}
