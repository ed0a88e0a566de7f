package filecmd

import (
	"errors"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
)

func newMkdirCommand(env *cli.Env) *cobra.Command {
	var parents bool
	cmd := &cobra.Command{
		Use:     "mkdir PATH...",
		GroupID: cli.GroupFiles,
		Short:   "Make directories",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.Each(cmd.Context(), args, cli.ParseRemote, func(c *cli.Connection, l cli.Location) error {
				var err error
				if parents {
					_, err = c.MkdirAll(cmd.Context(), l.Path, 0o755)
				} else {
					_, err = c.Mkdir(cmd.Context(), l.Path, 0o755)
					if errors.Is(err, moraine.NotFound) {
						return fmt.Errorf("%s: its parent directory does not exist: make it first, or "+
							"give -p to make all missing parents", l)
					}
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVarP(&parents, "parents", "p", false, "make missing parents too; no error where "+
		"the directory exists")
	return cmd
}
