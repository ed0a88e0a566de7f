package filecmd

import (
	"io"
	"os"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
)

func newCatCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:     "cat PATH...",
		GroupID: cli.GroupFiles,
		Short:   "Write files to standard output",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.Each(cmd.Context(), args, cli.ParseLocation, func(c *cli.Connection, l cli.Location) error {
				if c == nil {
					f, err := os.Open(l.Path)
					if err != nil {
						return err
					}
					defer f.Close()
					_, err = io.Copy(env.Out, f)
					return err
				}
				return CopyOut(cmd.Context(), c.Client, l.Path, env.Out, nil)
			})
		},
	}
}
