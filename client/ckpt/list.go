package ckpt

import (
	"context"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

// listPage is how many runs or steps one request returns.
const listPage = 1000

// RunInfo describes a run in a directory listing.
type RunInfo struct {
	ID   moraine.InodeID
	Name string
	// Attempt is the number of the current attempt, Launch the launch that began it.
	Attempt uint32
	Launch  string
	// Committed counts the committed steps of all attempts.
	Committed uint64
}

// ListRuns returns the runs in a directory, in order of name.
func ListRuns(ctx context.Context, c *client.Client, dir moraine.InodeID) ([]RunInfo, error) {
	var runs []RunInfo
	for req := (&wire.ListRuns{Parent: uint64(dir), Limit: listPage}); ; {
		resp, err := rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ListRuns{ListRuns: req}})
		if err != nil {
			return nil, err
		}
		page := resp.GetRuns()
		for _, r := range page.GetRuns() {
			runs = append(runs, RunInfo{moraine.InodeID(r.Id), r.Name, r.Attempt, r.Launch, r.Committed})
			req.After = r.Name
		}
		if !page.GetMore() || len(page.GetRuns()) == 0 {
			return runs, nil
		}
	}
}

// ListSteps returns the committed steps of a run, by attempt and number. With all, it also
// returns those that are open, aborted, lost or deleted. It fails with NotFound if the
// directory is no run.
func ListSteps(ctx context.Context, c *client.Client, run moraine.InodeID, all bool) ([]StepInfo, error) {
	return listSteps(ctx, overClient{c}, run, all)
}

func listSteps(ctx context.Context, c cluster, run moraine.InodeID, all bool) ([]StepInfo, error) {
	var steps []StepInfo
	for req := (&wire.ListSteps{Run: uint64(run), Limit: listPage, All: all}); ; {
		resp, err := c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ListSteps{ListSteps: req}})
		if err != nil {
			return nil, err
		}
		page := resp.GetSteps()
		for _, s := range page.GetSteps() {
			steps = append(steps, stepInfo(s))
			req.AfterAttempt, req.AfterStep = s.GetKey().GetAttempt(), s.GetKey().GetStep()
		}
		if !page.GetMore() || len(page.GetSteps()) == 0 {
			return steps, nil
		}
	}
}
