package ckptcmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/morainefs/moraine"
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
	// Waiting are the open ones of them, and which ranks let the others wait.
	Waiting []waiting `json:"waiting"`
	// Slowest are the ranks that sealed the newest committed step last. Absent for a step of one rank.
	Slowest *slowest `json:"slowest,omitempty"`
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
		Long: `Show the newest steps of a run: their state and level, and for each level the newest good step
and what a crash now would lose if only that level and safer ones survived it. "lost steps" counts
up to the newest step that a rank has begun to save, and "lost time" from the commit of the
level's step.

Of an open step it names the ranks that have not sealed, ten at most: first those that have not
begun, then those that began last. It shows how long the others have waited: since the first rank
has begun, and since the first one has sealed; and of each such rank when it began, and how many
bytes it has sent to the cluster. Ranks of one node that save through its agent share one count.
Of the newest committed step it shows the ten ranks that sealed last: when each began and sealed.
These times are of the clocks of the metadata servers.

The view is printed again when something has changed, and each 10 s while ranks are missing,
until the command is interrupted. On a terminal it replaces the one before. With --json each
change is one line.`,
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

// reprint is how often the view is printed without a change, while ranks let others wait.
const reprint = 10 * time.Second

func ckptWatch(ctx context.Context, env *cli.Env, arg string, o watchFlags) error {
	run, c, l, err := openRunOf(ctx, env, arg)
	if err != nil {
		return err
	}
	defer c.Close()
	ticker := time.NewTicker(o.every)
	defer ticker.Stop()
	times := sealTimes{c: c.Client}
	var last []byte
	var printed time.Time
	for {
		now, err := lookAt(ctx, c, run, &times, o.steps)
		if err != nil {
			return cli.Named(err, l, run.ID())
		}
		now.Run = l.String()
		key, err := now.withoutTime()
		if err != nil {
			return err
		}
		if !bytes.Equal(key, last) || len(now.Waiting) > 0 && time.Since(printed) >= reprint {
			if err := now.print(env, !o.once && last != nil); err != nil {
				return err
			}
			last, printed = key, time.Now()
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

// lookAt reads what the view shows.
func lookAt(ctx context.Context, c *cli.Connection, run *ckpt.Run, times *sealTimes, n int) (runState, error) {
	steps, levels, err := exposureOf(ctx, c, run)
	if err != nil {
		return runState{}, err
	}
	now := runState{Time: time.Now(), Levels: levels, Steps: []stepRow{}, Waiting: []waiting{}}
	committed := false
	for _, s := range newestSteps(steps, n) {
		row := describeStep(s)
		switch {
		case s.State == ckpt.StepOpen:
			w, err := times.waitingOf(ctx, s, now.Time)
			if err != nil {
				return now, err
			}
			if w != nil {
				row.Missing, row.Ranks = w.Missing, fmt.Sprintf("%d of %d", w.Sealed, w.World)
				now.Waiting = append(now.Waiting, *w)
			}
		case s.State == ckpt.StepCommitted && !committed:
			committed = true
			if now.Slowest, err = times.slowestOf(ctx, s); err != nil && !errors.Is(err, moraine.NotFound) { // it was removed
				return now, err
			}
		}
		now.Steps = append(now.Steps, row)
	}
	return now, nil
}
