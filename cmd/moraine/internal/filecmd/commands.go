package filecmd

import (
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
)

// Commands returns the commands for files and directories.
func Commands(env *cli.Env) []*cobra.Command {
	return []*cobra.Command{newLsCommand(env), newCpCommand(env), newCatCommand(env), newRmCommand(env), newMvCommand(env), newMkdirCommand(env), newDuCommand(env), newStatCommand(env), newInfoCommand(env), newWatchCommand(env)}
}
