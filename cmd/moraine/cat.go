package main

import (
	"io"
	"os"

	"github.com/spf13/cobra"
)

func (a *app) catCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "cat PATH...",
		GroupID: groupFiles,
		Short:   "Write files to standard output",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args, parseLocation, func(c *connection, l location) error {
				if c == nil {
					f, err := os.Open(l.path)
					if err != nil {
						return err
					}
					defer f.Close()
					_, err = io.Copy(a.out, f)
					return err
				}
				return copyOut(cmd.Context(), c.Client, l.path, a.out, nil)
			})
		},
	}
}
