package jobcmd

import (
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
)

// Commands returns the commands that make, show and steer background work.
func Commands(env *cli.Env) []*cobra.Command {
	return append(moveCommands(env), newTierCommand(env), newJobCommand(env), newScrubCommand(env), newRebalanceCommand(env))
}
