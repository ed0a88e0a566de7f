package main

import (
	"runtime"

	"github.com/morainefs/moraine"
	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "dev"

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		GroupID: groupCluster,
		Short:   "Print the version of this binary",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if a.global.json {
				return printJSON(a.out, map[string]any{
					"version": version, "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH,
					"feature_level": moraine.FeatureLevel,
				})
			}
			a.note("moraine %s (%s, %s/%s, feature level %d)", version, runtime.Version(), runtime.GOOS, runtime.GOARCH, moraine.FeatureLevel)
			return nil
		},
	}
}
