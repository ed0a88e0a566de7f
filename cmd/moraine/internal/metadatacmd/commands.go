package metadatacmd

import (
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
)

// Commands returns the commands below `moraine metadata`, which are for people.
func Commands(env *cli.Env) []*cobra.Command {
	return []*cobra.Command{
		newMetadataListCommand(env), newMetadataAddCommand(env), newMetadataRemoveCommand(env), newMetadataReplaceCommand(env), newMetadataStatusCommand(env),
		newMetadataBackupCommand(env), newMetadataRestoreCommand(env), newMetadataForceCommand(env),
	}
}
