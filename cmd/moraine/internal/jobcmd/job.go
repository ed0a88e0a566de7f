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
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/jsonname"
	"github.com/spf13/cobra"
)

// jobInfo is what `job ls` prints of a job.
type jobInfo struct {
	ID       string        `json:"id"`
	Kind     string        `json:"kind"`
	State    string        `json:"state"`
	Subject  jsonname.Name `json:"subject"`
	Holder   string        `json:"holder,omitempty"`
	Done     uint64        `json:"done"`
	Total    uint64        `json:"total"`
	Attempts uint32        `json:"attempts"`
	Error    jsonname.Name `json:"error,omitempty"` // it may name files
}

func describeJob(j client.Job) jobInfo {
	return jobInfo{
		ID: j.ID.String(), Kind: string(j.Kind), State: string(j.State), Subject: jsonname.Name(j.Subject),
		Holder: j.Holder, Done: j.Done, Total: j.Total, Attempts: j.Attempts, Error: jsonname.Name(j.Error),
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
			for j, err := range c.Jobs().List(ctx, all) {
				if err != nil {
					return err
				}
				jobs = append(jobs, describeJob(j))
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
