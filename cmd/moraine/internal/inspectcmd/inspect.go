// Package inspectcmd has the commands below `moraine inspect`, which read files on disk
// without a server and change nothing.
//
// One path through it: `moraine inspect device` -> package tiers/disk reads the segments ->
// each record becomes a line.
package inspectcmd

import (
	"fmt"
	"os"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/disk"
	"github.com/spf13/cobra"
)

// recordRow is what `inspect` prints of one record.
type recordRow struct {
	Segment  uint64 `json:"segment"`
	Offset   int64  `json:"offset"`
	Size     int64  `json:"size"`
	Sequence uint64 `json:"sequence"`
	Kind     string `json:"kind"` // chunk or tombstone
	Chunk    string `json:"chunk,omitempty"`
	Version  uint32 `json:"version,omitempty"`
	Length   int64  `json:"length,omitempty"`
	CRC      string `json:"crc,omitempty"`
	Deletes  int    `json:"deletes,omitempty"`
	Damage   string `json:"damage,omitempty"`
}

func describeRecord(r disk.RecordInfo) recordRow {
	row := recordRow{Segment: r.Segment, Offset: r.Offset, Size: r.Size, Sequence: r.Sequence, Kind: "chunk"}
	if r.Damage != nil {
		row.Damage = r.Damage.Error()
	}
	if r.Tombstone != nil {
		row.Kind, row.Deletes = "tombstone", len(r.Tombstone)
		return row
	}
	row.Chunk, row.Version, row.Length = r.Header.ID.String(), uint32(r.Header.Version), r.Header.Length
	row.CRC = fmt.Sprintf("%08x", r.Header.CRC)
	return row
}

// NewInspectCommand returns `moraine inspect`.
func NewInspectCommand(env *cli.Env) *cobra.Command {
	return cli.Parent(&cobra.Command{
		Use:     "inspect",
		GroupID: cli.GroupCluster,
		Short:   "Show files on disk, without a server and without changing them",
	}, newInspectDeviceCommand(env), newInspectLogCommand(env), newInspectSnapshotCommand(env), newInspectStateCommand(env), newInspectObjectsCommand(env))
}

func newInspectDeviceCommand(env *cli.Env) *cobra.Command {
	var data bool
	cmd := &cobra.Command{
		Use:   "device DIR|SEGMENT",
		Short: "List the records of a chunkserver's device, or of one of its segment files",
		Long: `List every record of a device (a directory) or of one segment file, in order. With --data
the command also reads the bytes of each chunk and verifies their checksums. Exit code 1
when anything is damaged.`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			info, err := os.Stat(args[0])
			if err != nil {
				return err
			}
			records, damaged := 0, 0
			show := func(r disk.RecordInfo) error {
				records++
				if r.Damage != nil {
					damaged++
				}
				return printRecord(env, describeRecord(r))
			}
			if info.IsDir() {
				var id disk.Identity
				if id, err = disk.ReadIdentity(vfs.OS{}, args[0]); err != nil {
					return err
				}
				env.Note("device %s of cluster %s", id.Device, id.Cluster)
				err = disk.Inspect(vfs.OS{}, args[0], data, show)
			} else {
				_, err = disk.InspectSegment(vfs.OS{}, args[0], data, show)
			}
			if err != nil {
				return err
			}
			env.Note("%d records, %d damaged", records, damaged)
			if damaged > 0 {
				return fmt.Errorf("%d of %d records are damaged; a chunkserver does not serve them, "+
					"and the cluster repairs their stripes when the server reports them", damaged, records)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&data, "data", false, "also read the chunks' bytes, and verify them")
	return cmd
}

// printRecord prints one record as a line at once: a device has many.
func printRecord(env *cli.Env, r recordRow) error {
	if env.Global.JSON {
		return cli.PrintJSON(env.Out, r)
	}
	what := fmt.Sprintf("chunk %s version %d, %s, crc %s", r.Chunk, r.Version, cli.Size(uint64(r.Length)), r.CRC)
	if r.Kind == "tombstone" {
		what = fmt.Sprintf("tombstone of %d chunks", r.Deletes)
	}
	if r.Damage != "" {
		what += "  DAMAGED: " + r.Damage
	}
	env.Note("%6d %12d %10s  #%-8d %s", r.Segment, r.Offset, cli.Size(uint64(r.Size)), r.Sequence, what)
	return nil
}
