// Package jobcmd has the commands that make, show and steer background work: flush, stage,
// evict, tier, job, scrub and rebalance.
//
// One path through it: `moraine flush --wait` -> moveAll makes the jobs -> waitMove looks at
// files and jobs (movewait.go) until each file is in the bucket.
package jobcmd

import (
	"context"
	"strconv"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/spf13/cobra"
)

// jobInfo is what `job ls` prints of a job.
type jobInfo struct {
	ID       string `json:"id"`
	Kind     string `json:"kind"`
	State    string `json:"state"`
	Subject  string `json:"subject"`
	Holder   string `json:"holder,omitempty"`
	Done     uint64 `json:"done"`
	Total    uint64 `json:"total"`
	Attempts uint32 `json:"attempts"`
	Error    string `json:"error,omitempty"`
}

var (
	jobKinds = map[wire.JobKind]string{
		wire.JobKind_JOB_KIND_REPAIR:        "repair",
		wire.JobKind_JOB_KIND_COMMIT_STEP:   "commit-step",
		wire.JobKind_JOB_KIND_REMOVE_TREE:   "remove-tree",
		wire.JobKind_JOB_KIND_SCAN_DEVICE:   "scan-device",
		wire.JobKind_JOB_KIND_DROP_TABLES:   "drop-tables",
		wire.JobKind_JOB_KIND_FLUSH:         "flush",
		wire.JobKind_JOB_KIND_STAGE:         "stage",
		wire.JobKind_JOB_KIND_EVICT:         "evict",
		wire.JobKind_JOB_KIND_DELETE_OBJECT: "delete-object",
		wire.JobKind_JOB_KIND_MOVE_TREE:     "move-tree",
		wire.JobKind_JOB_KIND_RECOUNT:       "recount",
		wire.JobKind_JOB_KIND_CLONE_TREE:    "clone-tree",
		wire.JobKind_JOB_KIND_CONCAT:        "concat",
		wire.JobKind_JOB_KIND_REBALANCE:     "rebalance",
		wire.JobKind_JOB_KIND_REWRITE:       "rewrite",
		wire.JobKind_JOB_KIND_UNSPECIFIED:   "unknown",
	}
	jobStates = map[wire.JobState]string{
		wire.JobState_JOB_STATE_PENDING:     "pending",
		wire.JobState_JOB_STATE_RUNNING:     "running",
		wire.JobState_JOB_STATE_DONE:        "done",
		wire.JobState_JOB_STATE_FAILED:      "failed",
		wire.JobState_JOB_STATE_CANCELED:    "canceled",
		wire.JobState_JOB_STATE_UNSPECIFIED: "unknown",
	}
)

func describeJob(j *wire.Job) jobInfo {
	return jobInfo{
		ID: moraine.JobID(j.Id).String(), Kind: jobKinds[j.Kind], State: jobStates[j.State], Subject: j.Subject,
		Holder: j.Holder, Done: j.Done, Total: j.Total, Attempts: j.Attempts, Error: j.Error,
	}
}

func newJobCommand(env *cli.Env) *cobra.Command {
	return cli.Parent(&cobra.Command{
		Use:     "job",
		GroupID: cli.GroupCluster,
		Short:   "List, wait for and cancel background jobs",
	}, newJobListCommand(env), newJobWaitCommand(env), newJobCancelCommand(env))
}

func newJobListCommand(env *cli.Env) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List jobs: the server that runs each, and its progress",
		Args:  cobra.NoArgs,
		RunE: env.OnCluster(func(ctx context.Context, c *cli.Connection, _ []string) error {
			var jobs []jobInfo
			for req := (&wire.ListJobs{Limit: 1000, Ended: all}); ; {
				resp, err := c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ListJobs{ListJobs: req}})
				if err != nil {
					return err
				}
				page := resp.GetJobs()
				for _, j := range page.Jobs {
					jobs = append(jobs, describeJob(j))
					req.After = j.Id
				}
				if !page.More || len(page.Jobs) == 0 {
					break
				}
			}
			return cli.List(env, jobs, table.Row{"id", "kind", "state", "what", "done", "by", "error"}, func(j jobInfo) table.Row {
				done := ""
				if j.Total > 0 {
					done = strconv.FormatUint(j.Done, 10) + " of " + strconv.FormatUint(j.Total, 10)
				}
				return table.Row{j.ID, j.Kind, j.State, j.Subject, done, j.Holder, j.Error}
			})
		}),
	}
	cmd.Flags().BoolVar(&all, "all", false, "include jobs that have ended")
	return cmd
}

func newJobCancelCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "cancel ID",
		Short: "Cancel a job; what it has done so far stays",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := parseJobID(args[0])
			if err != nil {
				return err
			}
			c, err := env.Dial(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			return c.Jobs().Cancel(cmd.Context(), id)
		},
	}
}
