package inspectcmd

import (
	"fmt"
	"path/filepath"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/object/localstore"
	"github.com/spf13/cobra"
)

// objectRow is what `inspect objects` prints of one file.
type objectRow struct {
	File   string `json:"file"`
	Key    string `json:"key,omitempty"`
	Size   int64  `json:"size"`
	CRC    string `json:"crc,omitempty"`
	ETag   string `json:"etag,omitempty"`
	Damage string `json:"damage,omitempty"`
}

func newInspectObjectsCommand(env *cli.Env) *cobra.Command {
	var data bool
	cmd := &cobra.Command{
		Use:   "objects DIR",
		Short: "List the objects and parts of uploads of a local bucket",
		Long: `List the files of a local bucket, the --data directory of "object-server". No server may run
on it. With --data the command also reads the bytes of each file and compares them with
their CRC32C. Exit code 1 when anything is damaged.`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			var rows []objectRow
			damaged := 0
			err := localstore.Inspect(vfs.OS{}, filepath.Join(args[0], "store"), data, func(i localstore.FileInfo) {
				row := objectRow{File: i.Path}
				if r := i.Record; r != nil {
					row.Key, row.Size, row.CRC, row.ETag = r.Key, r.Size, fmt.Sprintf("%08x", r.CRC), r.ETag
				}
				if i.Damage != nil {
					row.Damage = i.Damage.Error()
					damaged++
				}
				rows = append(rows, row)
			})
			if err != nil {
				return err
			}
			if err := cli.List(env, rows, table.Row{"file", "key", "size", "CRC32C", "ETag", "damage"}, func(r objectRow) table.Row {
				return table.Row{r.File, r.Key, r.Size, r.CRC, r.ETag, r.Damage}
			}); err != nil {
				return err
			}
			if damaged > 0 {
				return fmt.Errorf("%d of %d files are damaged", damaged, len(rows))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&data, "data", false, "also read the bytes")
	return cmd
}
