package agentcmd

import (
	"fmt"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
)

func newStatusCommand(env *cli.Env, socket *string) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "List the parts of checkpoints in this node's memory, and the figures of each run",
		Long: `List the parts of checkpoints in this node's memory. For each run it shows what the agent has
counted since its start, and what a crash of this node now would lose at each level. --json
prints all of it as one object.`,
		Example: "  moraine agent status --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			reply, err := agentproto.Ask(cmd.Context(), cli.AgentSocket(*socket), &agentproto.Request{Status: &agentproto.Status{}})
			if err != nil {
				return err
			}
			return printStatus(env, reply.Status)
		},
	}
}

func printStatus(env *cli.Env, s *agentproto.StatusReply) error {
	if env.Global.JSON {
		return cli.PrintJSON(env.Out, s)
	}
	env.Note("%s of the %s for arenas are in use", cli.Size(uint64(s.Used)), cli.Size(uint64(s.Memory)))
	if err := PrintParts(env, s.Parts); err != nil || len(s.Runs) == 0 {
		return err
	}
	fmt.Fprintln(env.Out)
	rows := make([]table.Row, len(s.Runs))
	for i, r := range s.Runs {
		rows[i] = table.Row{r.Run, r.Saves, cli.Size(uint64(r.Bytes)), mean(r.StallSeconds, r.Saves), r.Failed, r.Restores, mean(r.RestoreSeconds, r.Restores), exposureOf(r)}
	}
	cli.PrintTable(env.Out, table.Row{"RUN", "SAVES", "SIZE", "MEAN STALL", "FAILED", "RESTORES", "MEAN RESTORE", "A CRASH NOW WOULD LOSE"}, rows)
	return nil
}

// mean is the mean time of n events; 0 if there are none.
func mean(seconds float64, n uint64) time.Duration {
	return time.Duration(seconds / float64(max(n, 1)) * float64(time.Second)).Round(time.Millisecond)
}

// exposureOf says what a crash would lose at each level.
func exposureOf(r agentproto.RunStatus) string {
	var out []string
	for _, l := range r.Levels {
		out = append(out, fmt.Sprintf("%s: %s, %s", l.Level, cli.CountOf(int(l.LostSteps), "step"), time.Duration(l.LostSeconds*float64(time.Second)).Round(time.Second)))
	}
	return strings.Join(out, "; ")
}

// PrintParts lists parts in a node's memory.
func PrintParts(env *cli.Env, parts []agentproto.Part) error {
	return cli.List(env, parts, table.Row{"RUN", "ATTEMPT", "STEP", "RANK", "SIZE", "WRITTEN", "STATE", "ERROR"}, func(p agentproto.Part) table.Row {
		return table.Row{p.Run, p.Attempt, p.Step, p.Rank, cli.Size(uint64(p.Bytes)), cli.Size(uint64(p.Written)), p.State, p.Error}
	})
}
