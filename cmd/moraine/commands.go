package main

import (
	"github.com/morainefs/moraine/cmd/moraine/internal/certcmd"
	"github.com/morainefs/moraine/cmd/moraine/internal/ckptcmd"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/filecmd"
	"github.com/morainefs/moraine/cmd/moraine/internal/policycmd"
	"github.com/morainefs/moraine/cmd/moraine/internal/s3cmd"
	"github.com/morainefs/moraine/cmd/moraine/internal/simcmd"
	"github.com/spf13/cobra"
)

// commands lists the commands of the binary.
func commands(env *cli.Env) []*cobra.Command {
	all := []*cobra.Command{
		newMountCommand(env), newUmountCommand(env), ckptcmd.NewCkptCommand(env), newClusterCommand(env), newFsckCommand(env), policycmd.NewPolicyCommand(env), policycmd.NewQuotaCommand(env),
		certcmd.NewCertCommand(env), newInspectCommand(env), simcmd.NewSimCommand(env), newVersionCommand(env), s3cmd.NewS3Command(env), newDevClusterCommand(env), newDemoCommand(env), newBenchCommand(env),
	}
	for _, area := range [][]*cobra.Command{filecmd.FileCommands(env), hostCommands(env), jobCommands(env), serverCommands(env)} {
		all = append(all, area...)
	}
	return all
}

// hostCommands are the commands for hosts and devices.
func hostCommands(env *cli.Env) []*cobra.Command {
	return []*cobra.Command{newHostCommand(env), newDrainCommand(env), newMaintenanceCommand(env), newDeviceCommand(env)}
}

// jobCommands are the commands that make, show and steer background work.
func jobCommands(env *cli.Env) []*cobra.Command {
	return append(moveCommands(env), newTierCommand(env), newJobCommand(env), newScrubCommand(env), newRebalanceCommand(env))
}

// serverCommands run servers.
func serverCommands(env *cli.Env) []*cobra.Command {
	return []*cobra.Command{newMetadataCommand(env), newChunkserverCommand(env), newObjectServerCommand(env), newStandaloneCommand(env)}
}
