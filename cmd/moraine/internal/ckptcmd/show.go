package ckptcmd

import (
	"context"
	"fmt"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/view"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/spf13/cobra"
)

// shownStep is what `ckpt show` prints.
type shownStep struct {
	stepRow
	Lost []view.LostRow `json:"lost_files"`
}

func newCkptShowCommand(env *cli.Env) *cobra.Command {
	var step uint64
	var attempt uint32
	cmd := &cobra.Command{
		Use:   "show RUN --step N [--attempt A]",
		Short: "Show a checkpoint, and which of its bytes are lost",
		Long: `Show a checkpoint in any state. Of a lost checkpoint it lists the files that have lost
bytes, and where. The other bytes can be read by the checkpoint's path. The checkpoint
is committed again when the lost bytes return.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, _, key, err := openStep(cmd, env, args[0], step, attempt)
			if err != nil {
				return err
			}
			defer c.Close()
			return showStep(cmd.Context(), env, c, key)
		},
	}
	cmd.Flags().Uint64Var(&step, "step", 0, "step to show")
	cmd.Flags().Uint32Var(&attempt, "attempt", 0, "its attempt (default: the one that RUN/step-N names)")
	return cmd
}

func showStep(ctx context.Context, env *cli.Env, c *cli.Connection, key client.StepKey) error {
	s, err := ckpt.GetStep(ctx, c.Client, key)
	if err != nil {
		return err
	}
	_, policy, err := ckpt.GetPolicy(ctx, c.Client, key.Run)
	if err != nil {
		return err
	}
	show := shownStep{stepRow: describeUnder(s, policy), Lost: []view.LostRow{}}
	if s.State == ckpt.StepLost {
		if show.Lost, err = stepLost(ctx, c, key); err != nil {
			return err
		}
	}
	if env.Global.JSON {
		return cli.PrintJSON(env.Out, show)
	}
	env.Note("step %d, attempt %d: %s at level %s, ranks %s, %s", show.Step, show.Attempt, show.State, show.Level, show.Ranks, cli.Size(show.Bytes))
	for level := moraine.Memory; level <= moraine.Object; level++ {
		if at, ok := show.Reached[level.String()]; ok {
			env.Note("at %s since %s", level, at.Format(time.DateTime))
		}
	}
	switch show.EndsAt {
	case "", show.Level:
	default:
		env.Note("the policy brings it to %s", show.EndsAt)
	}
	if s.State == ckpt.StepCommitted && s.StaysInMemory {
		env.Note("the policy leaves it in memory: ckpt wait --level nvme, and ckpt pin, bring it to the devices")
	}
	if said := show.said(); said != "" {
		env.Note("%s", said)
	}
	if why := pathAndReason(show.stepRow); why != "" {
		env.Note("%s", why)
	}
	if len(show.Lost) == 0 {
		return nil
	}
	return cli.List(env, show.Lost, table.Row{"file", "inode", "lost"}, func(r view.LostRow) table.Row { return table.Row{r.Path, r.Inode, r.What()} })
}

// stepLost lists the files of a checkpoint that have lost bytes.
func stepLost(ctx context.Context, c *cli.Connection, key client.StepKey) ([]view.LostRow, error) {
	rows := []view.LostRow{}
	for after := ""; ; {
		resp, err := rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ListLost{ListLost: &wire.ListLost{Step: keyToWire(key), AfterName: after}}})
		if err != nil {
			return nil, fmt.Errorf("lost files: %w", err)
		}
		for _, f := range resp.GetLost().GetFiles() {
			rows = append(rows, view.LostRowOf(f, f.GetPath()))
		}
		if !resp.GetLost().GetMore() {
			return rows, nil
		}
		after = resp.GetLost().GetLastName()
	}
}
