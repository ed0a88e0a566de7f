package filecmd

import (
	"fmt"
	"path"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
)

func newMvCommand(env *cli.Env) *cobra.Command {
	var opts client.RenameOptions
	cmd := &cobra.Command{
		Use:     "mv FROM TO",
		GroupID: cli.GroupFiles,
		Short:   "Rename or move a file or directory within a cluster",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, err := cli.ParseRemote(args[0])
			if err != nil {
				return err
			}
			to, err := cli.ParseRemote(args[1])
			if err != nil {
				return err
			}
			if from.Hosts != to.Hosts {
				return cli.UsageError("mv works only within one cluster: copy with `moraine cp`, then " +
					"remove")
			}
			s := env.Sessions()
			defer s.Close()
			c, err := s.Of(cmd.Context(), from)
			if err != nil {
				return err
			}
			target := to.Path
			if attr, err := c.Stat(cmd.Context(), to.Path); err == nil && attr.IsDir() {
				target = path.Join(to.Path, path.Base(from.Path))
			} else if to.Dir {
				return fmt.Errorf("%s is not a directory", to)
			}
			return cli.Named(c.Rename(cmd.Context(), from.Path, target, opts), from)
		},
	}
	cmd.Flags().BoolVar(&opts.Checkpoints, "checkpoints", false, "move a directory with committed "+
		"checkpoints too")
	return cmd
}
