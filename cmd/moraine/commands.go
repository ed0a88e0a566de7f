package main

import "github.com/spf13/cobra"

// commands lists the commands of the binary.
func (a *app) commands() []*cobra.Command {
	return append(a.moveCommands(),
		a.lsCommand(), a.cpCommand(), a.catCommand(), a.rmCommand(), a.mvCommand(), a.mkdirCommand(), a.duCommand(), a.statCommand(), a.watchCommand(), a.mountCommand(), a.umountCommand(), a.ckptCommand(),
		a.clusterCommand(), a.hostCommand(), a.drainCommand(), a.maintenanceCommand(), a.scrubCommand(), a.fsckCommand(), a.rebalanceCommand(), a.deviceCommand(), a.jobCommand(), a.policyCommand(), a.quotaCommand(), a.tierCommand(), a.certCommand(), a.inspectCommand(), a.simCommand(), a.versionCommand(),
		a.metadataCommand(), a.chunkserverCommand(), a.objectServerCommand(), a.s3Command(), a.standaloneCommand(), a.devClusterCommand(), a.demoCommand(), a.benchCommand(),
	)
}
