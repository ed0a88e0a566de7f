// Package fsckcmd has `moraine fsck`, which compares the metadata with the devices, with the
// bucket, and with its own counts.
//
// One path through it: checkAll runs package internal/fsck over the devices -> fsckFurther
// checks the state (state.go) and the objects (objects.go) -> fsckEnd prints what was found
// and sets the exit code.
package fsckcmd

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/policycmd"
	"github.com/morainefs/moraine/cmd/moraine/internal/view"
	"github.com/morainefs/moraine/internal/fsck"
	"github.com/morainefs/moraine/internal/jsonname"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/spf13/cobra"
)

// fsckFlags are the flags of `fsck`.
type fsckFlags struct {
	repair   bool
	accept   bool
	metadata bool
	settle   time.Duration
}

// fsckResult is what `fsck` prints.
type fsckResult struct {
	Clean         bool             `json:"clean"`
	Devices       int              `json:"devices"`
	Chunks        uint64           `json:"chunks"`
	Bytes         uint64           `json:"bytes"`
	PendingChunks uint64           `json:"pending_chunks"`
	PendingBytes  uint64           `json:"pending_bytes"`
	Findings      []fsckFinding    `json:"findings"`
	More          bool             `json:"more_findings"`
	LostStripes   []string         `json:"lost_stripes"`
	LostFiles     []view.LostRow   `json:"lost_files"`
	Objects       uint64           `json:"objects"` // objects that were compared with the bucket
	BadObjects    []view.BadObject `json:"bad_objects"`
	NotChecked    []fsckMissed     `json:"not_checked"`
	Metadata      []string         `json:"metadata"`           // inconsistencies, in words
	Waiting       view.WaitsStatus `json:"waiting_for_repair"` // of the repair queue, where the check was complete
	Path          jsonname.Name    `json:"path"`               // empty: the check was complete
	Queued        int              `json:"queued_for_repair"`
	Dropped       int              `json:"dropped"`
	Seconds       float64          `json:"seconds"`
}

// fsckFinding is a bad chunk.
type fsckFinding struct {
	Fault  fsck.Fault `json:"fault"`
	Device uint32     `json:"device"`
	Host   string     `json:"host"`
	Stripe string     `json:"stripe"`
	Index  uint8      `json:"index"`
	Bytes  uint64     `json:"bytes"`
	Scheme string     `json:"scheme"`
	Queued bool       `json:"repair_queued"` // it was queued before this check
}

// fsckMissed is what fsck could not check.
type fsckMissed struct {
	Host    string   `json:"host"`
	Devices []uint32 `json:"devices"`
	Why     string   `json:"why"`
}

// NewFsckCommand returns `moraine fsck`.
func NewFsckCommand(env *cli.Env) *cobra.Command {
	var f fsckFlags
	cmd := &cobra.Command{
		Use:     "fsck [PATH]",
		GroupID: cli.GroupCluster,
		Short:   "Compare the metadata with the chunks on chunkservers, in both directions",
		Long: `Compare the metadata with the chunks that chunkservers have, while the cluster works. The
command finds:

  - chunks that are missing on their device, or have another checksum or length there
  - chunks that no metadata record explains
  - files that have lost bytes

It checks every finding again after --settle, and reports those that are still there. With
PATH it checks only what is below PATH, and finds no unexplained chunks.

Without PATH, chunkservers compare each object of the object tier with its record, by a
HEAD. The command names an object that is missing in the bucket or differs, with its file.
Where a bucket does not answer, it says that the state of the objects is unknown. Up to
256 objects a second are compared in each bucket.

With --metadata it also checks the metadata itself: reference counts, indexes, counters and
usage, each against a new count. This check runs here, on a backup in the directory for
temporary files (TMPDIR), and keeps the namespace in memory.

Without --repair the command changes nothing. With --repair the cluster rebuilds missing and
damaged chunks, and counts usage again where the metadata is inconsistent. It keeps
unexplained chunks unless --accept-loss is also given. After a restore or a forced quorum
they may be the only remains of files that the metadata does not know.

The command does not read the bytes of chunks; "moraine scrub start" does that. It also
reports what waits for repair, since that includes corrupt chunks that a scrub or a reader
found.

Exit codes:

  0  everything was checked, and is right
  3  something was found, or stripes wait for repair because chunks are lost or corrupt
  1  nothing was found, but a part could not be checked, such as the devices of a
     chunkserver that is down`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.settle <= 0 {
				return cli.UsageError("--settle %v: write a time such as 5s", f.settle)
			}
			if f.accept && !f.repair {
				return cli.UsageError("--accept-loss works only with --repair")
			}
			if len(args) == 0 {
				c, err := env.Dial(cmd.Context())
				if err != nil {
					return err
				}
				defer c.Close()
				return checkAll(cmd.Context(), env, c, f, "")
			}
			return env.Each(cmd.Context(), args, cli.ParseRemote, func(c *cli.Connection, l cli.Location) error {
				return checkAll(cmd.Context(), env, c, f, l.Path)
			})
		},
	}
	cmd.Flags().BoolVar(&f.repair, "repair", false, "rebuild missing and damaged chunks from the rest "+
		"of their stripes")
	cmd.Flags().BoolVar(&f.accept, "accept-loss", false, "with --repair: delete unexplained chunks, "+
		"for good")
	cmd.Flags().BoolVar(&f.metadata, "metadata", false, "also check the metadata itself, on a copy on "+
		"this machine")
	cmd.Flags().DurationVar(&f.settle, "settle", 5*time.Second, "how long after the first look the "+
		"command checks its findings again")
	return cmd
}

func checkAll(ctx context.Context, env *cli.Env, c *cli.Connection, f fsckFlags, path string) error {
	start := time.Now()
	var bar *cli.Bar
	checker := fsck.New(fsck.Config{Settle: f.settle, Path: path, Repair: f.repair, Accept: f.accept}, fsck.Deps{Meta: rawclient.Of(c).Meta, Chunks: c.Pool.Chunks, Walk: c.Walk, Progress: func(done, total uint64) {
		if bar == nil {
			bar = env.StartBar("chunks", 0)
			bar.Plain()
		}
		bar.SetTotal(int64(total))
		bar.SetDone(int64(done))
	}})
	report, err := checker.Run(ctx)
	bar.Finish(err)
	if report == nil {
		return err
	}
	r := describeFsck(report)
	r.Path, r.Queued = jsonname.Name(path), report.Reported
	if err == nil {
		err = fsckFurther(ctx, env, c, f, r)
	}
	if err == nil && f.accept {
		r.Dropped, err = checker.Drop(ctx, report.Findings)
	}
	if err == nil && f.repair && len(r.Metadata) > 0 {
		_, err = policycmd.Recounted(ctx, c)
	}
	r.Clean = err == nil && report.Clean() && len(r.NotChecked) == 0 && len(r.BadObjects) == 0 && len(r.LostFiles) == 0 && len(r.Metadata) == 0 && r.Waiting.Hurt() == 0
	r.Seconds = time.Since(start).Seconds()
	return fsckEnd(env, r, f.repair, err)
}

// fsckFurther adds the checks that the lists of devices cannot answer. They
// cover lost files, objects, waiting repairs and, where a flag requests it, the
// metadata itself.
func fsckFurther(ctx context.Context, env *cli.Env, c *cli.Connection, f fsckFlags, r *fsckResult) error {
	if r.Path == "" {
		files, err := view.LostFiles(ctx, c)
		if err != nil {
			return err
		}
		r.addLost(files)
		if err := fsckObjects(ctx, env, c, r); err != nil {
			return err
		}
		cluster, err := view.GetCluster(ctx, c.Client)
		if err != nil {
			return err
		}
		r.addWaiting(cluster)
	}
	if !f.metadata {
		return nil
	}
	problems, err := checkState(ctx, env, c)
	r.Metadata = append(r.Metadata, problems...)
	return err
}

// addWaiting adds what waits for repair. A queue without a report could not be read.
func (r *fsckResult) addWaiting(c *wire.ClusterReply) {
	if w := view.DescribeWaits(c.Waits); w != nil {
		r.Waiting = *w
	} else if c.RepairQueued > 0 {
		r.Metadata = append(r.Metadata, fmt.Sprintf("the leader cannot read the repair queue, of %s: "+
			"its log says why", cli.CountOf(int(c.RepairQueued), "stripe")))
	}
}

// addLost adds files that have lost bytes to those that are in the list already.
func (r *fsckResult) addLost(files []view.LostRow) {
	for _, f := range files {
		if !slices.ContainsFunc(r.LostFiles, func(have view.LostRow) bool { return have.Inode == f.Inode && have.Object == f.Object }) {
			r.LostFiles = append(r.LostFiles, f)
		}
	}
}
