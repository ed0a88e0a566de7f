package main

import (
	"fmt"
	"path"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/spf13/cobra"
)

func (a *app) mvCommand() *cobra.Command {
	var opts client.RenameOptions
	cmd := &cobra.Command{
		Use:     "mv FROM TO",
		GroupID: groupFiles,
		Short:   "Rename or move a file or directory within a cluster",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, err := parseRemote(args[0])
			if err != nil {
				return err
			}
			to, err := parseRemote(args[1])
			if err != nil {
				return err
			}
			if from.hosts != to.hosts {
				return usageError("mv works only within one cluster: copy with `moraine cp`, then " +
					"remove")
			}
			s := a.sessions()
			defer s.close()
			c, err := s.of(cmd.Context(), from)
			if err != nil {
				return err
			}
			target := to.path
			if attr, err := c.Stat(cmd.Context(), to.path); err == nil && attr.Type == wire.FileType_FILE_TYPE_DIRECTORY {
				target = path.Join(to.path, path.Base(from.path))
			} else if to.dir {
				return fmt.Errorf("%s is not a directory", to)
			}
			return named(c.Rename(cmd.Context(), from.path, target, opts), from)
		},
	}
	cmd.Flags().BoolVar(&opts.Checkpoints, "checkpoints", false, "move a directory with committed "+
		"checkpoints too")
	return cmd
}
