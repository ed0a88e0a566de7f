package ckptcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/localfiles"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
)

// saver saves local files as one rank's part of a step.
type saver struct {
	env         *cli.Env
	run         cli.Location
	step        uint64
	opts        ckpt.RunOptions
	sealTimeout time.Duration
	scheme      string
	level       string
	until       moraine.Level // that level names
}

// flags adds the flags that every save has.
func (s *saver) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Uint64Var(&s.step, "step", 0, "number of the step")
	f.StringVar(&s.opts.Launch.Name, "launch", "", "string that the ranks of one launch share (default: "+
		"from the scheduler's variables)")
	f.BoolVar(&s.opts.Takeover, "takeover", false, "take over from the current attempt, even if it still has "+
		"live sessions")
	f.StringVar(&s.scheme, "scheme", "", cli.SchemeUsage)
}

// parse reads the run's address and the flags.
func (s *saver) parse(cmd *cobra.Command, run string) (err error) {
	if !cmd.Flags().Changed("step") {
		return cli.UsageError("no step is named: give --step N")
	}
	if s.run, err = cli.ParseRemote(run); err != nil {
		return err
	}
	if s.opts.Launch.Name == "" {
		s.opts.Launch = ckpt.LaunchFromEnv(os.Getenv)
	}
	if s.opts.Launch.Name == "" && s.opts.World <= 1 {
		// One process that saves alone is a launch of its own.
		s.opts.Launch.Name = fmt.Sprintf("cli-%d-%d", os.Getpid(), time.Now().UnixNano())
	}
	if s.until, err = moraine.ParseLevel(s.level); err != nil {
		return cli.AsWrongUse(err)
	}
	return nil
}

func newCkptSaveCommand(env *cli.Env) *cobra.Command {
	s := saver{env: env}
	cmd := &cobra.Command{
		Use: "save RUN --step N FILE...",
		Short: "Save safetensors files (and other files, as blobs) as a step, or as one rank's part of " +
			"it",
		Long: `Save local files as a step of RUN: the tensors of *.safetensors files, and every other
file as a blob. With --world N, each of N processes saves its own part. The step appears when
all parts are saved. "ckpt restore" brings the files back as they were.

The command reads the files in place, and needs no memory for them, except with --agent. Do not
change them meanwhile.`,
		Example: "  moraine ckpt save moraine:///runs/demo --step 100 model.safetensors rng.bin",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			s.opts.Agent = cli.AgentIfNamed(cmd, "agent", s.opts.Agent)
			if err := s.parse(cmd, args[0]); err != nil {
				return err
			}
			// A launch that cannot save must not take the place of one that can.
			local, err := localfiles.Open(args[1:])
			if err != nil {
				return err
			}
			defer local.Close() // after the run: then no save reads them
			return s.save(cmd.Context(), local)
		},
	}
	s.flags(cmd)
	f := cmd.Flags()
	f.Uint32Var(&s.opts.Rank, "rank", 0, "this process's rank")
	f.Uint32Var(&s.opts.World, "world", 1, "number of ranks")
	f.StringVar(&s.opts.Agent, "agent", "", "unix socket of the node's agent, which then keeps and writes the files (default: MORAINE_AGENT, or none)")
	f.StringVar(&s.level, "level", "nvme", "level to wait for: memory, nvme, object, or local (in the agent's memory)")
	f.DurationVar(&s.sealTimeout, "seal-timeout", 10*time.Minute, "abort the step when no rank has "+
		"sealed for this long; a week at most")
	return cmd
}

// save saves the files, and returns when the step has reached the level.
func (s *saver) save(ctx context.Context, local *localfiles.Files) error {
	cfg, err := cli.SchemeConfig(s.scheme)
	if err != nil {
		return err
	}
	c, err := s.env.DialHosts(ctx, s.run.Hosts, cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	run, err := ckpt.OpenRun(ctx, c.Client, s.run.Path, s.opts)
	if errors.Is(err, moraine.Busy) {
		err = fmt.Errorf("%w (give --takeover if you know that the other launch is dead)", err)
	}
	if err != nil {
		return err
	}
	defer run.Close(ctx) //nolint:errcheck // the save was waited for, or its error is returned
	info, err := s.savePart(ctx, run, local)
	if err != nil {
		return err
	}
	return s.report(info)
}

// savePart saves the part and waits for the level.
func (s *saver) savePart(ctx context.Context, run *ckpt.Run, local *localfiles.Files) (ckpt.StepInfo, error) {
	lent := s.opts.Agent == ""
	opts := ckpt.BeginOptions{SealTimeout: s.sealTimeout, Bytes: local.Bytes(), Lent: lent}
	if s.until == moraine.Memory {
		opts.Level = moraine.Memory // who waits for nvme gains nothing by it
	}
	part, err := run.Begin(ctx, s.step, opts)
	if err != nil {
		return ckpt.StepInfo{}, err
	}
	stop := s.env.StartBar("saved", local.Bytes()).Follow(func() (done, total int64, ok bool) {
		done, total, err := part.Progress(ctx)
		return done, max(total, local.Bytes()), err == nil
	})
	info, err := s.fill(ctx, part, local, lent)
	stop(err)
	return info, err
}

// fill adds the files to the part, and waits for the level.
func (s *saver) fill(ctx context.Context, part *ckpt.Part, local *localfiles.Files, lent bool) (ckpt.StepInfo, error) {
	if err := local.AddTo(ctx, part, lent); err != nil {
		part.Abort(err)
		return ckpt.StepInfo{}, err
	}
	if err := part.Seal(ctx); err != nil {
		return ckpt.StepInfo{}, err
	}
	return part.Wait(ctx, s.until)
}

// localPart is what `ckpt save --level local` prints: the step has no state in the cluster yet.
type localPart struct {
	Run   string `json:"run"`
	Step  uint64 `json:"step"`
	Rank  uint32 `json:"rank"`
	World uint32 `json:"world"`
	Level string `json:"level"`
}

// report prints the saved step.
func (s *saver) report(info ckpt.StepInfo) error {
	if s.until == moraine.Local {
		if s.env.Global.JSON {
			return cli.PrintJSON(s.env.Out, localPart{s.run.String(), s.step, s.opts.Rank, max(s.opts.World, 1), s.until.String()})
		}
		s.env.Note("step %d of %s is in the memory of this node: rank %d of %d. `moraine agent status` shows how it goes on", s.step, s.run, s.opts.Rank, s.opts.World)
		return nil
	}
	if s.env.Global.JSON {
		return cli.PrintJSON(s.env.Out, describeStep(info))
	}
	s.env.Note("step %d of %s is committed at level %s: %s in %s", info.Step, s.run, info.Level, cli.Size(info.Bytes), info.Path)
	if info.Degraded > 0 {
		s.env.Note("%d of its stripes are below full protection (survive the loss of %d). The cluster "+
			"repairs them when enough hosts are up", info.Degraded, info.Protects)
	}
	return nil
}
