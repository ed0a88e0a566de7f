package jobcmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/view"
	"github.com/morainefs/moraine/internal/jsonname"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/spf13/cobra"
)

// errNoTier is the error of object tier commands where no host has a bucket.
var errNoTier = errors.New("no host of this cluster has a bucket: give chunkservers one with `moraine " +
	"chunkserver --bucket s3://BUCKET/PREFIX`")

// move is one of the commands that move files between tiers.
type move struct {
	name, short, long string
	kind              client.JobKind
	// reached reports whether a file is where the move brings it.
	reached func(a whereabouts) bool
}

// whereabouts is what a move looks at in the attributes of a file.
type whereabouts interface {
	Size() int64
	Stored() int64
	Clean() bool
	Evicted() bool
}

var moves = []move{
	{"flush", "Copy files to the object tier", `Queue the upload of files to the bucket, and of all files below directories. Chunkservers
still serve a flushed file; see "moraine evict".`,
		client.JobFlush, func(a whereabouts) bool { return a.Clean() }},
	{"stage", "Bring evicted files back from the object tier", `Queue the download of files that are only in the bucket to the chunkservers, and of all such
files below directories.`,
		client.JobStage, func(a whereabouts) bool { return !a.Evicted() }},
	{"evict", "Drop the local bytes of files that are in the object tier", `Queue the eviction of files, and of all files below directories. Once the bucket has
confirmed that it has a file's current content, the chunkservers free its bytes. The
command does not touch a file that is not flushed.`,
		client.JobEvict, func(a whereabouts) bool { return a.Evicted() || a.Size() == 0 || a.Stored() == 0 }},
}

func moveCommands(env *cli.Env) []*cobra.Command {
	var cmds []*cobra.Command
	for _, m := range moves {
		var wait bool
		cmd := &cobra.Command{
			Use:     m.name + " PATH...",
			GroupID: cli.GroupFiles,
			Short:   m.short,
			Long:    m.long,
			Example: "  moraine " + m.name + " --wait moraine:///runs/llama/step-1000",
			Args:    cobra.MinimumNArgs(1),
			RunE:    func(cmd *cobra.Command, args []string) error { return moveAll(cmd.Context(), env, m, args, wait) },
		}
		cmd.Flags().BoolVar(&wait, "wait", false, "return when it is done; Ctrl-C ends the waiting, "+
			"not the work")
		cmds = append(cmds, cmd)
	}
	return cmds
}

func moveAll(ctx context.Context, env *cli.Env, m move, args []string, wait bool) error {
	return env.Each(ctx, args, cli.ParseRemote, func(c *cli.Connection, l cli.Location) error {
		attr, err := c.Stat(ctx, l.Path)
		if err != nil {
			return err
		}
		jobs, err := c.Jobs().Queue(ctx, m.kind, attr.Inode())
		if err != nil {
			return cli.Named(err, l, attr.Inode())
		}
		if !wait {
			return sayQueued(env, m, l, jobs)
		}
		err = waitMove(ctx, env, c, m, l, jobs)
		if ctx.Err() != nil {
			fmt.Fprintf(env.Err, "moraine: the work continues: `moraine job ls` shows it, `moraine job "+
				"cancel ID` ends it\n")
		}
		return err
	})
}

// sayQueued prints the jobs that were made for a path. It also prints why there is none
// where nothing is to do, or nothing can be done.
func sayQueued(env *cli.Env, m move, l cli.Location, jobs []client.Job) error {
	var made []client.Job
	var failed []error
	for _, j := range jobs {
		switch {
		case j.ID != 0:
			made = append(made, j)
		case j.State == client.JobFailed:
			failed = append(failed, fmt.Errorf("%s of %s %s: %s", m.name, l, j.State, j.Error))
		default:
			env.Note("%s: nothing to %s", l, m.name)
		}
	}
	if len(made) > 0 {
		failed = append(failed, printJobs(env, made))
	}
	return errors.Join(failed...)
}

func printJobs(env *cli.Env, jobs []client.Job) error {
	infos := make([]jobInfo, len(jobs))
	for i, j := range jobs {
		infos[i] = describeJob(j)
	}
	return cli.List(env, infos, table.Row{"id", "kind", "state", "what"}, func(j jobInfo) table.Row {
		return table.Row{j.ID, j.Kind, j.State, j.Subject}
	})
}

func newJobWaitCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "wait ID...",
		Short: "Wait until jobs have ended; fails where one of them did not succeed",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ids := make([]moraine.JobID, len(args))
			for i, arg := range args {
				var err error
				if ids[i], err = parseJobID(arg); err != nil {
					return err
				}
			}
			c, err := env.Dial(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			var failed []error
			for i, arg := range args {
				id := ids[i]
				bar := env.StartBar("job "+arg, 0)
				j, err := c.Jobs().Wait(cmd.Context(), id, func(j client.Job) { bar.SetTotal(int64(j.Total)); bar.SetDone(int64(j.Done)) })
				bar.Finish(err)
				if err != nil {
					return err
				}
				if err := printJobs(env, []client.Job{j}); err != nil {
					return err
				}
				if j.State != client.JobDone {
					failed = append(failed, fmt.Errorf("job %s %s: %s", arg, j.State, j.Error))
				}
			}
			return errors.Join(failed...)
		},
	}
}

func parseJobID(s string) (moraine.JobID, error) {
	id, err := strconv.ParseUint(s, 16, 64)
	if err != nil {
		return 0, cli.UsageError("job %q: write an id as `moraine job ls` prints it", s)
	}
	return moraine.JobID(id), nil
}

// tierInfo is what `tier status` prints.
type tierInfo struct {
	Buckets         []string `json:"buckets"`
	Hosts           uint64   `json:"hosts"`
	Objects         uint64   `json:"objects"`
	Bytes           uint64   `json:"bytes"`
	QueuedFlushes   uint64   `json:"queued_flushes"`
	QueuedStages    uint64   `json:"queued_stages"`
	QueuedEvictions uint64   `json:"queued_evictions"`
	QueuedDeletions uint64   `json:"queued_deletions"`
	Intents         uint64   `json:"intents"`
	UnsettledKeys   uint64   `json:"unsettled_keys"`
	// Stuck counts jobs that fail again and again. The other fields are of the oldest.
	Stuck        uint64        `json:"stuck"`
	StuckJob     string        `json:"stuck_job,omitempty"`
	StuckSubject jsonname.Name `json:"stuck_subject,omitempty"`
	StuckError   jsonname.Name `json:"stuck_error,omitempty"`
	// Probed is what movers found out about each bucket since the current metadata leader
	// was elected.
	Probed []bucketTraits `json:"probed"`
	// ProbedSince is for how long that leader has led, in seconds.
	ProbedSince uint64 `json:"probed_since_seconds"`
	// Health is how each bucket answers.
	Health []view.BucketStatus `json:"health"`
}

// bucketTraits are what a bucket supports.
type bucketTraits struct {
	Bucket string `json:"bucket"`
	// Verified is how uploads are verified: "store CRC" or "read back".
	Verified    string `json:"verified"`
	IfNoneMatch bool   `json:"if_none_match"`
	IfMatch     bool   `json:"if_match"`
	// IfMatchDelete says whether a deletion evaluates If-Match too.
	IfMatchDelete bool `json:"if_match_delete"`
	// Versioned buckets keep replaced and deleted objects until a lifecycle rule expires
	// them.
	Versioned bool `json:"versioned"`
}

func describeTraits(all []*wire.BucketTraits) []bucketTraits {
	out := []bucketTraits{}
	for _, t := range all {
		d := bucketTraits{Bucket: t.GetBucket(), Verified: "read back", IfNoneMatch: t.GetIfNoneMatch(), IfMatch: t.GetIfMatch(),
			IfMatchDelete: t.GetIfMatchDelete(), Versioned: t.GetVersioned()}
		if t.GetWholeCrc() {
			d.Verified = "store CRC"
		}
		out = append(out, d)
	}
	return out
}

func newTierCommand(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "tier",
		GroupID: cli.GroupCluster,
		Short:   "Show the object tier",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "status",
		Short: "Show what is in the bucket, and which jobs are under way",
		Args:  cobra.NoArgs,
		RunE: env.OnCluster(func(ctx context.Context, c *cli.Connection, _ []string) error {
			resp, err := rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetTier{GetTier: &wire.GetTier{}}})
			if err != nil {
				return err
			}
			return printTier(env, describeTier(resp.GetTier()))
		}),
	})
	return cmd
}

func describeTier(t *wire.TierReply) tierInfo {
	i := tierInfo{Buckets: append([]string{}, t.Buckets...), Hosts: t.Hosts, Objects: t.Objects, Bytes: t.Bytes,
		QueuedFlushes: t.QueuedFlushes, QueuedStages: t.QueuedStages, QueuedEvictions: t.QueuedEvictions, QueuedDeletions: t.QueuedDeletions,
		Intents: t.Intents, UnsettledKeys: t.UnsettledKeys, Stuck: t.Stuck, StuckSubject: jsonname.Name(t.StuckSubject), StuckError: jsonname.Name(t.StuckError),
		Probed: describeTraits(t.Traits), ProbedSince: t.LedMillis / 1000, Health: view.DescribeBuckets(t.Health)}
	if t.StuckJob != 0 {
		i.StuckJob = moraine.JobID(t.StuckJob).String()
	}
	return i
}

// moverWord is how long a new metadata leader may wait for the properties of a bucket. Movers
// report them with their requests for jobs, which are at most that far apart.
const moverWord = 30 * time.Second

// unprobed are the buckets of which nothing is known.
func (t *tierInfo) unprobed() []string {
	return slices.DeleteFunc(slices.Clone(t.Buckets), func(b string) bool {
		return slices.ContainsFunc(t.Probed, func(p bucketTraits) bool { return p.Bucket == b })
	})
}

func printTier(env *cli.Env, t tierInfo) error {
	if env.Global.JSON {
		return cli.PrintJSON(env.Out, t)
	}
	if t.Hosts == 0 {
		env.Note("%s", errNoTier)
	} else {
		env.Note("%s, served by %s", strings.Join(t.Buckets, ", "), cli.CountOf(int(t.Hosts), "host"))
		for _, b := range t.unprobed() {
			env.Note("  what %s supports is unknown: no mover has reported it to the metadata leader, "+
				"which has led for %d s. Movers report it within %v where they have probed the bucket. "+
				"Otherwise the next flush probes it",
				b, t.ProbedSince, moverWord)
		}
	}
	for _, b := range t.Health {
		env.Note("  %s", b.Words())
	}
	for _, p := range t.Probed {
		how := "the store returns the CRC32C of whole objects, which verifies uploads"
		if p.Verified != "store CRC" {
			how = "the store returns no CRC32C of whole objects: movers verify uploads by reading them " +
				"back"
		}
		env.Note("  %s: %s; conditional writes: If-None-Match %s, If-Match %s, of deletions %s", p.Bucket, how, cli.YesNo(p.IfNoneMatch), cli.YesNo(p.IfMatch), cli.YesNo(p.IfMatchDelete))
		if p.Versioned {
			env.Note("  %s is versioned: replaced and deleted objects stay and cost money, until a "+
				"lifecycle rule expires older versions", p.Bucket)
		}
	}
	env.Note("  %d objects, %s", t.Objects, cli.Size(t.Bytes))
	env.Note("  queued: %d flushes, %d stages, %d evictions, %d deletions", t.QueuedFlushes, t.QueuedStages, t.QueuedEvictions, t.QueuedDeletions)
	if t.Stuck > 0 {
		env.Note("  %s again and again, and tried ever less often: `moraine job ls` shows the errors. After "+
			"the cause is gone, `moraine flush` tries at once", cli.Are(int(t.Stuck), "job fails", "jobs fail"))
	}
	if t.StuckJob != "" {
		env.Note("  job %s, %s: %s", t.StuckJob, t.StuckSubject, t.StuckError)
	}
	env.Note("  %d changes of the bucket under way, %d keys waiting until late requests can do no harm", t.Intents, t.UnsettledKeys)
	return nil
}
