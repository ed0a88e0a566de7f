package ckptcmd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/jsonname"
	"github.com/spf13/cobra"
)

// stepRow is what `ckpt ls` prints of a step.
type stepRow struct {
	Attempt   uint32        `json:"attempt"`
	Step      uint64        `json:"step"`
	State     string        `json:"state"`
	Level     string        `json:"level"`
	Ranks     string        `json:"ranks"`
	Bytes     uint64        `json:"bytes"`
	Committed time.Time     `json:"committed,omitzero"`
	Path      jsonname.Name `json:"path,omitempty"`
	Degraded  uint64        `json:"degraded_stripes"`
	Protects  uint32        `json:"protects"`
	Missing   []uint32      `json:"missing,omitempty"`
	Reason    string        `json:"reason,omitempty"`
	// Reached has when a committed step first had each level.
	Reached map[string]time.Time `json:"reached,omitempty"`
	Mark    string               `json:"mark,omitempty"`
	Note    string               `json:"note,omitempty"`
	Tags    []string             `json:"tags,omitempty"`
	Pinned  bool                 `json:"pinned,omitempty"`
	// EndsAt is the level to which the policy in effect brings the step.
	EndsAt string `json:"ends_at,omitempty"`
}

// shownLevel is the level of a step, and the one to which the policy brings it.
func (r stepRow) shownLevel() string {
	if r.EndsAt == "" || r.EndsAt == r.Level && r.EndsAt != moraine.Memory.String() {
		return r.Level
	}
	if r.EndsAt == r.Level {
		return r.Level + " (stays)"
	}
	return r.Level + " -> " + r.EndsAt
}

// describeUnder is describeStep with the level to which a policy brings the step.
func describeUnder(s ckpt.StepInfo, p ckpt.Policy) stepRow {
	row := describeStep(s)
	if s.State == ckpt.StepCommitted && s.Level < moraine.Object {
		row.EndsAt = p.EndsAt(s).String()
	}
	return row
}

func describeStep(s ckpt.StepInfo) stepRow {
	row := stepRow{
		Attempt: s.Attempt, Step: s.Step, State: string(s.State), Level: s.Level.String(), Bytes: s.Bytes,
		Ranks: fmt.Sprintf("%d of %d", s.Sealed, s.World), Path: jsonname.Name(s.Path), Degraded: s.Degraded, Protects: s.Protects,
		Missing: s.Missing, Reason: s.Reason, Reached: map[string]time.Time{},
		Mark: string(s.Mark), Note: s.Note, Tags: s.Tags, Pinned: s.Pinned,
	}
	for level, at := range s.Reached {
		row.Reached[level.String()] = at
	}
	if s.State == ckpt.StepCommitted || s.State == ckpt.StepLost {
		row.Committed = s.CommittedAt
	}
	return row
}

func newCkptListCommand(env *cli.Env) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "ls PATH",
		Short: "List the steps of a run, or the runs in a directory",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := cli.ParseRemote(args[0])
			if err != nil {
				return err
			}
			c, err := env.DialHosts(cmd.Context(), l.Hosts, client.Config{})
			if err != nil {
				return err
			}
			defer c.Close()
			attr, err := c.Stat(cmd.Context(), l.Path)
			if err != nil {
				return err
			}
			if !attr.IsDir() {
				return fmt.Errorf("%s is a file: name a run, or a directory of runs", l)
			}
			steps, err := ckpt.ListSteps(cmd.Context(), c.Client, attr.Inode(), all)
			if errors.Is(err, moraine.NotFound) {
				return listRuns(cmd.Context(), env, c, attr.Inode())
			}
			if err != nil {
				return err
			}
			_, policy, err := ckpt.GetPolicy(cmd.Context(), c.Client, attr.Inode())
			if err != nil {
				return err
			}
			rows := make([]stepRow, len(steps))
			for i, s := range steps {
				rows[i] = describeUnder(s, policy)
			}
			return cli.List(env, rows, table.Row{"step", "attempt", "state", "level", "ranks", "size", "committed", "marks", "path or reason"}, func(s stepRow) table.Row {
				when := ""
				if !s.Committed.IsZero() {
					when = s.Committed.Format(time.DateTime)
				}
				return table.Row{s.Step, s.Attempt, s.State, s.shownLevel(), s.Ranks, cli.Size(s.Bytes), when, s.said(), pathAndReason(s)}
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "include steps that are open, aborted or deleted")
	return cmd
}

func pathAndReason(s stepRow) string {
	if s.Path != "" && s.Reason != "" {
		return string(s.Path) + ": " + s.Reason
	}
	return string(s.Path) + s.Reason
}

// runRow is what `ckpt ls` prints of a run.
type runRow struct {
	Name      jsonname.Name `json:"name"`
	Attempt   uint32        `json:"attempt"`
	Launch    string        `json:"launch"`
	Committed uint64        `json:"committed_steps"`
}

func listRuns(ctx context.Context, env *cli.Env, c *cli.Connection, dir moraine.InodeID) error {
	runs, err := ckpt.ListRuns(ctx, c.Client, dir)
	if err != nil {
		return err
	}
	if len(runs) == 0 {
		env.Note("the directory contains no run")
		return nil
	}
	rows := make([]runRow, len(runs))
	for i, r := range runs {
		rows[i] = runRow{jsonname.Name(r.Name), r.Attempt, r.Launch, r.Committed}
	}
	return cli.List(env, rows, table.Row{"run", "attempt", "launch", "committed steps"}, func(r runRow) table.Row {
		return table.Row{r.Name, r.Attempt, r.Launch, r.Committed}
	})
}
