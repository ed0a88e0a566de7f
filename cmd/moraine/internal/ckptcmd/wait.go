package ckptcmd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
)

// stepWait is what `ckpt wait` waits for.
type stepWait struct {
	step    uint64
	level   moraine.Level
	timeout time.Duration
}

func newCkptWaitCommand(env *cli.Env) *cobra.Command {
	var w stepWait
	var level string
	cmd := &cobra.Command{
		Use:   "wait RUN --step N",
		Short: "Wait until a checkpoint is committed",
		Long: `Wait until a step of the run's current attempt is committed at a level, also if no rank has
begun it yet. A step that an earlier attempt committed counts if the current one continues
from it or from a later step. The exit code is 0 only then.

A step goes from memory to nvme by itself, unless the policy of the run leaves it in memory: then
this command brings it to nvme, if --level is not memory. With --level object the command asks for its flush to
the bucket, and waits for it.

If the step is aborted, or the timeout passes, the command names the ranks that have not
saved their parts. The run must exist.`,
		Example: `  moraine ckpt wait moraine:///runs/llama --step 1000 --timeout 10m
  moraine ckpt wait moraine:///runs/llama --step 1000 --level memory`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("step") {
				return cli.UsageError("no step is named: give --step N")
			}
			var err error
			if w.level, err = moraine.ParseLevel(level); err != nil || w.level < moraine.Memory {
				return cli.UsageError("--level %q: write memory, nvme or object", level)
			}
			if w.timeout < 0 {
				return cli.UsageError("--timeout %v: write a time above 0, or 0 to wait without end", w.timeout)
			}
			l, err := cli.ParseRemote(args[0])
			if err != nil {
				return err
			}
			return ckptWait(cmd.Context(), env, l, w)
		},
	}
	f := cmd.Flags()
	f.Uint64Var(&w.step, "step", 0, "step to wait for")
	f.StringVar(&level, "level", "nvme", "level to wait for: memory, nvme or object")
	f.DurationVar(&w.timeout, "timeout", 0, "how long to wait (default: without end)")
	return cmd
}

func ckptWait(ctx context.Context, env *cli.Env, l cli.Location, w stepWait) error {
	run, c, err := openReader(ctx, env, l)
	if err != nil {
		return err
	}
	defer c.Close()
	waitCtx := ctx
	if w.timeout > 0 {
		var cancel context.CancelFunc
		waitCtx, cancel = context.WithTimeout(ctx, w.timeout)
		defer cancel()
	}
	bar := env.StartBar("ranks have sealed", 0)
	bar.Plain()
	sealed := ranksSealed{ctx: waitCtx, c: c, run: run, step: w.step}
	stop := bar.Follow(sealed.look)
	info, err := run.WaitStep(waitCtx, w.step, w.level)
	stop(err)
	if err != nil && waitCtx.Err() != nil && ctx.Err() == nil {
		info, err = w.afterTimeout(ctx, c, l, info)
	}
	if err != nil {
		return cli.Named(err, l, run.ID())
	}
	if env.Global.JSON {
		return cli.PrintJSON(env.Out, describeStep(info))
	}
	env.Note("step %d of %s is committed at level %s: %s in %s", info.Step, l, info.Level, cli.Size(info.Bytes), info.Path)
	return nil
}

// ranksSealed follows a step that somebody waits for. One goroutine uses it.
type ranksSealed struct {
	ctx  context.Context
	c    *cli.Connection
	run  *ckpt.Run
	step uint64
	key  client.StepKey // of the newest attempt that has begun the step; empty: none has yet
	next time.Time      // of the next request
}

// look returns how many ranks have sealed.
func (l *ranksSealed) look() (sealed, world int64, ok bool) {
	if time.Now().Before(l.next) {
		return 0, 0, false
	}
	l.next = time.Now().Add(time.Second)
	if l.key.Run == 0 {
		steps, err := ckpt.ListSteps(l.ctx, l.c.Client, l.run.ID(), true)
		for _, s := range steps {
			if s.Step == l.step && s.Attempt > l.key.Attempt {
				l.key = client.StepKey{Run: s.Run, Attempt: s.Attempt, Step: s.Step}
			}
		}
		if err != nil || l.key.Run == 0 {
			l.next = time.Now().Add(5 * time.Second) // the list may be long
			return 0, 0, false
		}
	}
	info, err := ckpt.GetStep(l.ctx, l.c.Client, l.key)
	return int64(info.Sealed), int64(info.World), err == nil
}

// afterTimeout returns the step if it was committed in time after all, and otherwise says what it
// lacks. last is the step as the wait last saw it.
func (w stepWait) afterTimeout(ctx context.Context, c *cli.Connection, l cli.Location, last ckpt.StepInfo) (ckpt.StepInfo, error) {
	lacks := func(format string, args ...any) error {
		return &moraine.Error{Op: "wait", Ref: fmt.Sprintf("step %d of %s", w.step, l), Kind: moraine.Timeout,
			Err: fmt.Errorf("after %v "+format, append([]any{w.timeout}, args...)...)}
	}
	if last.State == "" {
		return last, lacks("no rank of the current attempt has begun it")
	}
	info, err := ckpt.GetStep(ctx, c.Client, client.StepKey{Run: last.Run, Attempt: last.Attempt, Step: last.Step})
	if err != nil {
		return info, errors.Join(lacks("its state is unknown"), err)
	}
	switch info.State {
	case ckpt.StepCommitted:
		if info.Level >= w.level {
			return info, nil
		}
		return info, lacks("%s", info.Lacks())
	case ckpt.StepOpen:
		return info, lacks("%d of %d ranks have sealed: %w", info.Sealed, info.World, &ckpt.MissingError{Ranks: info.Missing})
	case ckpt.StepSealed:
		return info, lacks("all ranks have sealed, and a mover checks the parts")
	}
	return info, lacks("it is %s: %s", info.State, info.Reason)
}
