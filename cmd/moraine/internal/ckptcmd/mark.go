package ckptcmd

import (
	"context"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
)

// stepRefFlags are the flags that name one committed step to change.
type stepRefFlags struct {
	step    uint64
	attempt uint32
}

func (s *stepRefFlags) flags(cmd *cobra.Command) {
	cmd.Flags().Uint64Var(&s.step, "step", 0, "the step")
	cmd.Flags().Uint32Var(&s.attempt, "attempt", 0, "its attempt (default: the one that RUN/step-N names)")
}

// change changes what is said of the step of a run, and prints the step.
func (s *stepRefFlags) change(cmd *cobra.Command, env *cli.Env, arg string, change ckpt.StepChange) error {
	c, l, key, err := openStep(cmd, env, arg, s.step, s.attempt)
	if err != nil {
		return err
	}
	defer c.Close()
	info, err := ckpt.ChangeStep(cmd.Context(), c.Client, key, change)
	if err != nil {
		return cli.Named(err, l, key.Run)
	}
	if env.Global.JSON {
		return cli.PrintJSON(env.Out, describeStep(info))
	}
	env.Note("step %d of %s (attempt %d): %s", info.Step, l, info.Attempt, orNothingSaid(describeStep(info).said()))
	return nil
}

func orNothingSaid(text string) string {
	if text == "" {
		return "no mark, no tag, not pinned"
	}
	return text
}

// said is what people say of a step, in one line.
func (s stepRow) said() string {
	var out []string
	if s.Mark != "" {
		out = append(out, s.Mark)
	}
	if s.Pinned {
		out = append(out, "pinned")
	}
	if len(s.Tags) > 0 {
		out = append(out, "tags "+strings.Join(s.Tags, ","))
	}
	if s.Note != "" {
		out = append(out, "note: "+s.Note)
	}
	return strings.Join(out, "; ")
}

func newCkptMarkCommand(env *cli.Env) *cobra.Command {
	var (
		step                        stepRefFlags
		healthy, quarantined, clear bool
		note                        string
		change                      ckpt.StepChange
	)
	cmd := &cobra.Command{
		Use:   "mark RUN --step N",
		Short: "Mark a checkpoint healthy or quarantined, and give it tags",
		Long: `Change what is said of a committed checkpoint. Its files stay as they are. A quarantined
checkpoint is not latest: the links move to the newest good one, and a restore finds the
checkpoint only after the mark is removed. "ckpt restore" and the Go library find checkpoints
by tag, or the newest that is marked healthy.`,
		Example: `  moraine ckpt mark moraine:///runs/llama --step 1000 --healthy --note eval-loss-1.93 --tag best
  moraine ckpt mark moraine:///runs/llama --step 2000 --quarantined --note diverged
  moraine ckpt mark moraine:///runs/llama --step 2000 --clear`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("note") {
				change.Note = &note
			}
			for mark, given := range map[ckpt.Mark]bool{ckpt.MarkHealthy: healthy, ckpt.MarkQuarantined: quarantined, ckpt.MarkNone: clear} {
				if given {
					change.Mark = &mark
				}
			}
			if change.Mark == nil && change.Note == nil && len(change.AddTags)+len(change.RemoveTags) == 0 {
				return cli.UsageError("nothing is said: give --healthy, --quarantined, --clear, --note, --tag or --untag")
			}
			return step.change(cmd, env, args[0], change)
		},
	}
	step.flags(cmd)
	f := cmd.Flags()
	f.BoolVar(&healthy, "healthy", false, "mark it as good: --healthy of a restore finds it")
	f.BoolVar(&quarantined, "quarantined", false, "mark it as bad: it is not latest")
	f.BoolVar(&clear, "clear", false, "remove its mark and note")
	f.StringVar(&note, "note", "", "why it has the mark, 500 bytes at most")
	f.StringSliceVar(&change.AddTags, "tag", nil, "add a tag; may be given several times")
	f.StringSliceVar(&change.RemoveTags, "untag", nil, "remove a tag")
	cmd.MarkFlagsMutuallyExclusive("healthy", "quarantined", "clear")
	return cmd
}

func newCkptPinCommand(env *cli.Env, pinned bool) *cobra.Command {
	var step stepRefFlags
	cmd := &cobra.Command{
		Use:   "pin RUN --step N",
		Short: "Keep a checkpoint: the policy never removes it",
		Long: `Pin a committed checkpoint: neither the policy nor "ckpt prune" removes it, and "ckpt rm" only
with --force. The policy may still evict it: it then stays in the bucket only. If the policy
leaves it in memory, it goes on to the devices.`,
		Example: `  moraine ckpt pin moraine:///runs/llama --step 1000`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return step.change(cmd, env, args[0], ckpt.StepChange{Pinned: &pinned})
		},
	}
	if !pinned {
		cmd.Use, cmd.Short, cmd.Long = "unpin RUN --step N", "Remove the pin of a checkpoint", "Remove the pin of a checkpoint: the policy of its run applies to it again."
		cmd.Example = `  moraine ckpt unpin moraine:///runs/llama --step 1000`
	}
	step.flags(cmd)
	return cmd
}

// resolveOptions returns the step that the flags choose.
func (s *stepChoice) resolveOptions() ckpt.ResolveOptions {
	level := s.level
	if level == 0 && s.given {
		level = moraine.Memory
	}
	return ckpt.ResolveOptions{Level: level, Step: s.step, Exact: s.given, Tag: s.tag, Healthy: s.healthy}
}

// openRunOf opens the run that arg names, to read it. The caller closes the connection.
func openRunOf(ctx context.Context, env *cli.Env, arg string) (*ckpt.Run, *cli.Connection, cli.Location, error) {
	l, err := cli.ParseRemote(arg)
	if err != nil {
		return nil, nil, l, err
	}
	run, c, err := openReader(ctx, env, l)
	return run, c, l, err
}
