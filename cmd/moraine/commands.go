package main

import (
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
)

// commands lists the commands of the binary.
func commands(env *cli.Env) []*cobra.Command {
	all := []*cobra.Command{
		newMountCommand(env), newUmountCommand(env), newCkptCommand(env), newClusterCommand(env), newFsckCommand(env), newPolicyCommand(env), newQuotaCommand(env),
		newCertCommand(env), newInspectCommand(env), newSimCommand(env), newVersionCommand(env), newS3Command(env), newDevClusterCommand(env), newDemoCommand(env), newBenchCommand(env),
	}
	for _, area := range [][]*cobra.Command{fileCommands(env), hostCommands(env), jobCommands(env), serverCommands(env)} {
		all = append(all, area...)
	}
	return all
}

// fileCommands are the commands for files and directories.
func fileCommands(env *cli.Env) []*cobra.Command {
	return []*cobra.Command{newLsCommand(env), newCpCommand(env), newCatCommand(env), newRmCommand(env), newMvCommand(env), newMkdirCommand(env), newDuCommand(env), newStatCommand(env), newWatchCommand(env)}
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

// metadataCommands are the commands below `moraine metadata`, which are for people.
func metadataCommands(env *cli.Env) []*cobra.Command {
	return []*cobra.Command{
		newMetadataListCommand(env), newMetadataAddCommand(env), newMetadataRemoveCommand(env), newMetadataReplaceCommand(env), newMetadataStatusCommand(env),
		newMetadataBackupCommand(env), newMetadataRestoreCommand(env), newMetadataForceCommand(env),
	}
}
