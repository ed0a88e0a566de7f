package main

import (
	"runtime"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
)

func newVersionCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		GroupID: cli.GroupCluster,
		Short:   "Print the version of this binary",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if env.Global.JSON {
				return cli.PrintJSON(env.Out, map[string]any{
					"version": cli.Version, "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH,
					"feature_level": moraine.FeatureLevel,
				})
			}
			env.Note("moraine %s (%s, %s/%s, feature level %d)", cli.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH, moraine.FeatureLevel)
			return nil
		},
	}
}
