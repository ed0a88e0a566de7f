package clustercmd

import (
	"context"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/view"
	"github.com/spf13/cobra"
)

func newLostCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "lost",
		Short: "List the files with lost bytes that were only in memory, or in an object that is gone",
		Long: `List the files that have lost bytes, and which bytes. A file can lose bytes in two ways:

  - They were acknowledged at level memory (--ack memory). More chunkservers ended than the
    scheme survives, before the bytes were on their devices.
  - The file is evicted, and somebody deleted or replaced its object in the bucket.

A read of these ranges fails; reads of the rest of the file succeed. A file leaves the list
when it is written again or removed. An evicted file also leaves it when its object is back.

The cluster knows that an object is gone after a read, a job or a check found it missing.
"moraine fsck" compares all objects with the bucket.`,
		Args: cobra.NoArgs,
		RunE: env.OnCluster(func(ctx context.Context, c *cli.Connection, _ []string) error {
			return listLost(ctx, env, c)
		}),
	}
}

func listLost(ctx context.Context, env *cli.Env, c *cli.Connection) error {
	rows, err := view.LostFiles(ctx, c)
	if err != nil {
		return err
	}
	objects, err := view.BadObjects(ctx, c)
	if err != nil {
		return err
	}
	for _, b := range objects {
		if row, lost := b.Lost(); lost {
			rows = append(rows, row)
		}
	}
	return cli.List(env, rows, table.Row{"path", "inode", "lost"}, func(r view.LostRow) table.Row { return table.Row{r.Path, r.Inode, r.What()} })
}
