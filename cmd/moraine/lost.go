package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/spf13/cobra"
)

// lostRow is what `cluster lost` prints of a file.
type lostRow struct {
	Path   string      `json:"path"`
	Inode  string      `json:"inode"`
	Ranges []lostRange `json:"ranges"`
	More   bool        `json:"more_ranges,omitempty"`
	// Object is the object that had the bytes of an evicted file. In the bucket it is
	// missing, another one, or corrupt (State). Others, such as clones, may have lost bytes
	// with it.
	Object string `json:"object,omitempty"`
	State  string `json:"object_state,omitempty"`
	Others bool   `json:"other_files,omitempty"`
}

type lostRange struct {
	Offset uint64 `json:"offset"`
	Bytes  uint64 `json:"bytes"`
}

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

The cluster knows that an object is gone after a read, a job or a check found it missing:
"moraine fsck" compares all objects with the bucket.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := env.Dial(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			return listLost(cmd.Context(), env, c)
		},
	}
}

func listLost(ctx context.Context, env *cli.Env, c *cli.Connection) error {
	rows, err := lostFiles(ctx, c)
	if err != nil {
		return err
	}
	objects, err := badObjects(ctx, c)
	if err != nil {
		return err
	}
	for _, b := range objects {
		if row, lost := b.lost(); lost {
			rows = append(rows, row)
		}
	}
	return cli.List(env, rows, table.Row{"path", "inode", "lost"}, func(r lostRow) table.Row { return table.Row{r.Path, r.Inode, r.what()} })
}

// what says which ranges a file has lost.
func (r *lostRow) what() string {
	var what []string
	for _, x := range r.Ranges {
		what = append(what, fmt.Sprintf("%s at %d", cli.Size(x.Bytes), x.Offset))
	}
	if r.More {
		what = append(what, "and more")
	}
	text := strings.Join(what, ", ")
	if r.Object == "" {
		return text
	}
	if text == "" {
		text = "bytes of clones of its file"
	} else if r.Others {
		text += " (clones may have lost them too)"
	}
	return text + ": " + r.Object + " is " + r.State
}

// lostFiles lists the files that have lost bytes.
func lostFiles(ctx context.Context, c *cli.Connection) ([]lostRow, error) {
	rows := []lostRow{}
	for after := uint64(0); ; {
		resp, err := c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ListLost{ListLost: &wire.ListLost{After: after}}})
		if err != nil {
			return nil, err
		}
		reply := resp.GetLost()
		for _, f := range reply.GetFiles() {
			after = f.Inode
			path := "/" + f.Path
			if f.Path == "" {
				path = "" // it has no name
			}
			rows = append(rows, lostRowOf(f, path))
		}
		if reply.GetMore() && len(reply.GetFiles()) > 0 {
			continue
		}
		return rows, nil
	}
}
