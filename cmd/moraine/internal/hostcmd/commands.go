package hostcmd

import (
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
)

// Commands returns the commands for hosts and devices.
func Commands(env *cli.Env) []*cobra.Command {
	return []*cobra.Command{newHostCommand(env), newDrainCommand(env), newMaintenanceCommand(env), newDeviceCommand(env)}
}
