package agentcmd

import (
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
)

func newStatusCommand(env *cli.Env, socket *string) *cobra.Command {
	return &cobra.Command{
		Use:     "status",
		Short:   "List the parts of checkpoints in this node's memory",
		Example: "  moraine agent status --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			reply, err := agentproto.Ask(cmd.Context(), *socket, &agentproto.Request{Status: &agentproto.Status{}})
			if err != nil {
				return err
			}
			if !env.Global.JSON {
				env.Note("%s of the %s for arenas are in use", cli.Size(uint64(reply.Status.Used)), cli.Size(uint64(reply.Status.Memory)))
			}
			return PrintParts(env, reply.Status.Parts)
		},
	}
}

// PrintParts lists parts in a node's memory.
func PrintParts(env *cli.Env, parts []agentproto.Part) error {
	return cli.List(env, parts, table.Row{"RUN", "ATTEMPT", "STEP", "RANK", "SIZE", "WRITTEN", "STATE", "ERROR"}, func(p agentproto.Part) table.Row {
		return table.Row{p.Run, p.Attempt, p.Step, p.Rank, cli.Size(uint64(p.Bytes)), cli.Size(uint64(p.Written)), p.State, p.Error}
	})
}
