package main

import (
	"errors"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/spf13/cobra"
)

func (a *app) mkdirCommand() *cobra.Command {
	var parents bool
	cmd := &cobra.Command{
		Use:     "mkdir PATH...",
		GroupID: groupFiles,
		Short:   "Make directories",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args, parseRemote, func(c *connection, l location) error {
				var err error
				if parents {
					_, err = c.MkdirAll(cmd.Context(), l.path, 0o755)
				} else {
					_, err = c.Mkdir(cmd.Context(), l.path, 0o755)
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
