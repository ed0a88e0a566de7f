package main

import "github.com/spf13/cobra"

// commands lists the commands of the binary.
func (a *app) commands() []*cobra.Command {
	all := []*cobra.Command{
		a.mountCommand(), a.umountCommand(), a.ckptCommand(), a.clusterCommand(), a.fsckCommand(), a.policyCommand(), a.quotaCommand(),
		a.certCommand(), a.inspectCommand(), a.simCommand(), a.versionCommand(), a.s3Command(), a.devClusterCommand(), a.demoCommand(), a.benchCommand(),
	}
	for _, area := range [][]*cobra.Command{a.fileCommands(), a.hostCommands(), a.jobCommands(), a.serverCommands()} {
		all = append(all, area...)
	}
	return all
}

// fileCommands are the commands for files and directories.
func (a *app) fileCommands() []*cobra.Command {
	return []*cobra.Command{a.lsCommand(), a.cpCommand(), a.catCommand(), a.rmCommand(), a.mvCommand(), a.mkdirCommand(), a.duCommand(), a.statCommand(), a.watchCommand()}
}

// hostCommands are the commands for hosts and devices.
func (a *app) hostCommands() []*cobra.Command {
	return []*cobra.Command{a.hostCommand(), a.drainCommand(), a.maintenanceCommand(), a.deviceCommand()}
}

// jobCommands are the commands that make, show and steer background work.
func (a *app) jobCommands() []*cobra.Command {
	return append(a.moveCommands(), a.tierCommand(), a.jobCommand(), a.scrubCommand(), a.rebalanceCommand())
}

// serverCommands run servers.
func (a *app) serverCommands() []*cobra.Command {
	return []*cobra.Command{a.metadataCommand(), a.chunkserverCommand(), a.objectServerCommand(), a.standaloneCommand()}
}

// metadataCommands are the commands below `moraine metadata`, which are for people.
func (a *app) metadataCommands() []*cobra.Command {
	return []*cobra.Command{
		a.metadataListCommand(), a.metadataAddCommand(), a.metadataRemoveCommand(), a.metadataReplaceCommand(), a.metadataStatusCommand(),
		a.metadataBackupCommand(), a.metadataRestoreCommand(), a.metadataForceCommand(),
	}
}
