package clustercmd

import (
	"context"
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/spf13/cobra"
)

// quarantineRow is what `cluster quarantine` prints of a chunk.
type quarantineRow struct {
	Device      uint32 `json:"device"`
	Host        string `json:"host"`
	Stripe      string `json:"stripe"`
	Index       uint32 `json:"index"`
	Bytes       uint64 `json:"bytes"`
	Incarnation uint64 `json:"incarnation"`
}

func newQuarantineCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "quarantine",
		Short: "List chunks that no metadata record explains",
		Long: `List the chunks on devices that no metadata record explains. Each line has the incarnation
of the metadata that numbered the chunk's stripe. After a restore or a forced quorum such
chunks may belong to files that the metadata has lost. The cluster never deletes them by
itself. The list comes from the devices' reports to the current leader. A small device
sends one every few minutes, any device within an hour.`,
		Args: cobra.NoArgs,
		RunE: env.OnCluster(func(ctx context.Context, c *cli.Connection, _ []string) error {
			return listQuarantine(ctx, env, c)
		}),
	}
}

func listQuarantine(ctx context.Context, env *cli.Env, c *cli.Connection) error {
	rows := []quarantineRow{}
	for after := (&wire.ListQuarantine{}); ; {
		resp, err := rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ListQuarantine{ListQuarantine: after}})
		if err != nil {
			return err
		}
		reply := resp.GetQuarantine()
		for _, q := range reply.GetChunks() {
			after = &wire.ListQuarantine{AfterDevice: q.Device, AfterStripe: q.Stripe, AfterIndex: q.Index}
			rows = append(rows, quarantineRow{Device: q.Device, Host: q.Host, Stripe: moraine.StripeID(q.Stripe).String(), Index: q.Index, Bytes: q.Length, Incarnation: q.Incarnation})
		}
		if reply.GetMore() && len(reply.GetChunks()) > 0 {
			continue
		}
		if n := reply.GetUnlistedBytes(); n > 0 {
			fmt.Fprintf(env.Err, "%s more are not listed: their devices have not reported to the current "+
				"leader, or there are too many\n", cli.Size(n))
		}
		return cli.List(env, rows, table.Row{"device", "host", "stripe", "chunk", "size", "incarnation"}, func(r quarantineRow) table.Row {
			return table.Row{r.Device, r.Host, r.Stripe, r.Index, cli.Size(r.Bytes), r.Incarnation}
		})
	}
}
