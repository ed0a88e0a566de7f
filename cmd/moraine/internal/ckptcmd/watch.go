package ckptcmd

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
)

// runState is what `ckpt watch` shows of a run at one moment.
type runState struct {
	Time   time.Time  `json:"time"`
	Run    string     `json:"run"`
	Levels []exposure `json:"levels"`
	// Steps are the newest ones, newest first.
	Steps []stepRow `json:"steps"`
}

// watchFlags are the flags of `ckpt watch`.
type watchFlags struct {
	every time.Duration
	steps int
	once  bool
}

func newCkptWatchCommand(env *cli.Env) *cobra.Command {
	var o watchFlags
	cmd := &cobra.Command{
		Use:   "watch RUN",
		Short: "Show the checkpoints of a run, live",
		Long: `Show the newest steps of a run: their state and level, which ranks are still missing, and for
each level the newest good step and what a crash now would lose if only that level survived
it. "lost steps" counts up to the newest step that a rank has begun to save, and "lost time"
from the commit of the level's step.

The view is printed again when something has changed, until the command is interrupted. With
--json each change is one line.`,
		Example: `  moraine ckpt watch moraine:///runs/llama
  moraine ckpt watch moraine:///runs/llama --once --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.every <= 0 || o.steps <= 0 {
				return cli.UsageError("--every and --steps must be above 0")
			}
			err := ckptWatch(cmd.Context(), env, args[0], o)
			if cli.IsInterrupt(cmd.Context(), err) {
				return nil // Ctrl-C is how a watch ends
			}
			return err
		},
	}
	f := cmd.Flags()
	f.DurationVar(&o.every, "every", 2*time.Second, "how often to look")
	f.IntVar(&o.steps, "steps", 10, "how many of the newest steps to show")
	f.BoolVar(&o.once, "once", false, "show the run as it is now, and end")
	return cmd
}

func ckptWatch(ctx context.Context, env *cli.Env, arg string, o watchFlags) error {
	run, c, l, err := openRunOf(ctx, env, arg)
	if err != nil {
		return err
	}
	defer c.Close()
	ticker := time.NewTicker(o.every)
	defer ticker.Stop()
	var last []byte
	for {
		steps, levels, err := exposureOf(ctx, c, run)
		if err != nil {
			return cli.Named(err, l, run.ID())
		}
		now := runState{Time: time.Now(), Run: l.String(), Levels: levels, Steps: newestRows(steps, o.steps)}
		key, err := now.withoutTime()
		if err != nil {
			return err
		}
		if !bytes.Equal(key, last) {
			if err := now.print(env); err != nil {
				return err
			}
			last = key
		}
		if o.once {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// newestRows returns the n newest steps that were not removed, newest first.
func newestRows(steps []ckpt.StepInfo, n int) []stepRow {
	rows := []stepRow{}
	for _, s := range steps {
		if s.State != ckpt.StepDeleted {
			rows = append(rows, describeStep(s))
		}
	}
	slices.SortFunc(rows, func(a, b stepRow) int { return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), cmp.Compare(b.Step, a.Step)) })
	return rows[:min(n, len(rows))]
}

// withoutTime returns what changes only if the run does.
func (s runState) withoutTime() ([]byte, error) {
	s.Time = time.Time{}
	s.Levels = slices.Clone(s.Levels)
	for n := range s.Levels {
		s.Levels[n].LostSeconds = 0
	}
	return json.Marshal(s)
}

func (s runState) print(env *cli.Env) error {
	if env.Global.JSON {
		return cli.PrintJSON(env.Out, s)
	}
	fmt.Fprintf(env.Out, "%s  %s\n", s.Time.Format(time.DateTime), s.Run)
	printLevels(env, s.Levels)
	fmt.Fprintln(env.Out)
	rows := make([]table.Row, len(s.Steps))
	for n, r := range s.Steps {
		rows[n] = table.Row{r.Step, r.Attempt, r.State, r.Level, r.Ranks, cli.Size(r.Bytes), r.said(), waitsFor(r)}
	}
	cli.PrintTable(env.Out, table.Row{"step", "attempt", "state", "level", "ranks", "size", "marks", "waits for"}, rows)
	fmt.Fprintln(env.Out)
	return nil
}

// printLevels prints the exposure at each level, for people.
func printLevels(env *cli.Env, levels []exposure) {
	rows := make([]table.Row, len(levels))
	for n, e := range levels {
		if !e.found() {
			rows[n] = table.Row{e.Level, "none", "", "all", "all"}
			continue
		}
		rows[n] = table.Row{e.Level, e.Step, e.Committed.Format(time.DateTime), e.LostSteps, time.Duration(e.LostSeconds * float64(time.Second)).Round(time.Second)}
	}
	cli.PrintTable(env.Out, table.Row{"level", "newest step", "committed", "lost steps", "lost time"}, rows)
}

// maxNamedRanks bounds the missing ranks that one line names.
const maxNamedRanks = 8

// waitsFor says what a step needs until it is committed, or why it never will be.
func waitsFor(s stepRow) string {
	switch ckpt.StepState(s.State) {
	case ckpt.StepOpen:
		var names []string
		for _, r := range s.Missing[:min(len(s.Missing), maxNamedRanks)] {
			names = append(names, strconv.Itoa(int(r)))
		}
		text := "ranks " + strings.Join(names, ", ")
		if more := len(s.Missing) - len(names); more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		return text
	case ckpt.StepSealed:
		return "a mover checks it"
	}
	return s.Reason
}
