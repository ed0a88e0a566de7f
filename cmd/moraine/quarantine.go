package main

import (
	"context"
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine"
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

func (a *app) quarantineCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "quarantine",
		Short: "List chunks that nothing in the metadata explains",
		Long: `List the chunks that devices hold and nothing in the metadata explains, each with the
incarnation of the metadata that numbered its stripe: after a restore or a forced quorum
they may be of files that the present metadata has lost. They are never deleted by
themselves. The list is of the devices' reports since the present leader leads; they are
minutes apart on a small device, an hour at most.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.dial(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			return a.listQuarantine(cmd.Context(), c)
		},
	}
}

func (a *app) listQuarantine(ctx context.Context, c *connection) error {
	rows := []quarantineRow{}
	for after := (&wire.ListQuarantine{}); ; {
		resp, err := c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ListQuarantine{ListQuarantine: after}})
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
			fmt.Fprintf(a.err, "%s more are not listed: their devices have not reported since this leader leads, or there are too many\n", size(n))
		}
		return list(a, rows, table.Row{"device", "host", "stripe", "chunk", "size", "incarnation"}, func(r quarantineRow) table.Row {
			return table.Row{r.Device, r.Host, r.Stripe, r.Index, size(r.Bytes), r.Incarnation}
		})
	}
}
