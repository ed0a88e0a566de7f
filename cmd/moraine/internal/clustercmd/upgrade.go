package clustercmd

import (
	"context"
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/view"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/spf13/cobra"
)

// upgradeRow is what `cluster upgrade` prints.
type upgradeRow struct {
	Level   uint64          `json:"feature_level"`
	Can     uint64          `json:"can_be_raised_to"` // 0: some server has not reported it
	Servers []upgradeServer `json:"servers"`
}

type upgradeServer struct {
	ID      string `json:"id"`
	Release string `json:"release"`
	Level   uint64 `json:"level"` // 0: not known
	Leader  bool   `json:"leader"`
}

func newClusterUpgradeCommand(env *cli.Env) *cobra.Command {
	var finish bool
	cmd := &cobra.Command{
		Use:   "upgrade",
		Short: "Show the builds of the metadata servers and the cluster's feature level, or raise it",
		Long: `Show the feature level of each metadata server's build, and the level that the cluster uses.
To upgrade, replace the binary and restart one server after the other: chunkservers first,
then the metadata servers, the leader last. Once all run the new build and nobody wants to
go back, use --finish.

--finish raises the cluster's level to the newest that every metadata server supports. From
then on a server of an older build stops with an error that says so.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return clusterUpgrade(cmd.Context(), env, finish) },
	}
	cmd.Flags().BoolVar(&finish, "finish", false, "raise the cluster's level; there is no way back to "+
		"an older build after it")
	return cmd
}

func clusterUpgrade(ctx context.Context, env *cli.Env, finish bool) error {
	c, err := env.Dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	reply, err := view.Members(ctx, c)
	if err != nil {
		return err
	}
	row := upgradeRowOf(reply)
	if finish {
		was := row.Level
		reply, err := view.RequestMembers(ctx, c, &wire.MetaRequest{Op: &wire.MetaRequest_FinishUpgrade{FinishUpgrade: &wire.FinishUpgrade{Level: newest(row)}}})
		if err != nil {
			return err
		}
		row = upgradeRowOf(reply)
		if row.Level > was {
			env.Note("the cluster went from level %d to %d", was, row.Level)
		}
	}
	if env.Global.JSON {
		return cli.PrintJSON(env.Out, row)
	}
	var rows []table.Row
	for _, s := range row.Servers {
		level, role := fmt.Sprint(s.Level), ""
		if s.Level == 0 {
			level = "not known: is it up?"
		}
		if s.Leader {
			role = "leader"
		}
		rows = append(rows, table.Row{s.ID, role, s.Release, level})
	}
	cli.PrintTable(env.Out, table.Row{"id", "", "release", "level"}, rows)
	switch {
	case row.Can > row.Level:
		env.Note("\nthe cluster uses level %d; every server supports %d: `moraine cluster upgrade "+
			"--finish` raises it", row.Level, row.Can)
	case row.Can == 0:
		env.Note("\nthe cluster uses level %d; not every server has reported the level of its build", row.Level)
	default:
		env.Note("\nthe cluster uses level %d%s", row.Level, behind(row))
	}
	return nil
}

// newest is the newest level that any server supports. --finish requests it, so that the
// error names a server which does not support it.
func newest(r upgradeRow) (level uint64) {
	for _, s := range r.Servers {
		level = max(level, s.Level)
	}
	return level
}

// behind says that some servers support a higher level.
func behind(r upgradeRow) string {
	if newest(r) > r.Level {
		return fmt.Sprintf("; some support %d: upgrade the others", newest(r))
	}
	return ""
}

func upgradeRowOf(reply *wire.MembersReply) upgradeRow {
	row := upgradeRow{Level: reply.FeatureLevel, Servers: []upgradeServer{}}
	silent := false
	for _, m := range reply.Members {
		if m.Waiting {
			continue
		}
		s := upgradeServer{ID: m.Id, Release: m.Status.GetRelease(), Level: m.Status.GetLevel(), Leader: m.Leader}
		row.Servers = append(row.Servers, s)
		silent = silent || s.Level == 0
		if row.Can == 0 || s.Level < row.Can {
			row.Can = s.Level
		}
	}
	if silent {
		row.Can = 0
	}
	return row
}
