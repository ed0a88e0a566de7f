package servercmd

import (
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
)

// Commands returns the commands that run servers.
func Commands(env *cli.Env) []*cobra.Command {
	return []*cobra.Command{newMetadataCommand(env), newChunkserverCommand(env), newObjectServerCommand(env), newStandaloneCommand(env)}
}
