package ckptcmd

import (
	"context"
	"time"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt/adopt"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/jsonname"
	"github.com/spf13/cobra"
)

func newCkptAdoptCommand(env *cli.Env) *cobra.Command {
	var (
		opts        adopt.Options
		run, format string
		always      string
		quiet       time.Duration
	)
	cmd := &cobra.Command{
		Use:   "adopt DIR --run RUN --step N",
		Short: "Make a directory that a framework wrote a step of a run, without a copy of its bytes",
		Long: `Make the files below DIR a checkpoint of RUN: those of torch.distributed.checkpoint (dcp),
of one iteration of Megatron, or safetensors files of Hugging Face (hf). The step shares the
bytes of the files, so nothing is read or moved. DIR stays as it is. A directory that is not
complete, or that changes meanwhile, is not adopted, and the error says what is missing.

A directory of Megatron is complete when latest_checkpointed_iteration.txt beside it names its
iteration or a later one: Megatron writes that file when all ranks have written. A file that has
changed after it, or after .metadata of dcp, may belong to a later checkpoint that is half-written
over this one. If you know that all ranks have written and nothing writes there, for example of a
directory that was copied, say so with --complete. All other checks are made all the same.

With --always the cluster does so by itself for each directory below DIR whose last file
appears (.metadata, latest_checkpointed_iteration.txt or model.safetensors.index.json) and
nothing in it has changed for --quiet. A directory of the Trainer of transformers (checkpoint-N,
or with training_args.bin or optimizer.pt) also waits for trainer_state.json. The run is the
directory above, and the digits at the end of the directory's name are the step.`,
		Example: `  moraine ckpt adopt moraine:///scratch/job/step-1000 --run moraine:///runs/job --step 1000
  moraine ckpt adopt moraine:///scratch --always dcp`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := cli.ParseRemote(args[0])
			if err != nil {
				return err
			}
			one := cmd.Flags().Changed("run") || cmd.Flags().Changed("step") || cmd.Flags().Changed("format") || cmd.Flags().Changed("complete")
			switch {
			case cmd.Flags().Changed("quiet") && (!cmd.Flags().Changed("always") || always == string(adopt.Never) || always == inherit || quiet < time.Millisecond):
				return cli.UsageError("--quiet is 1ms or more, and goes with --always dcp, megatron or hf")
			case cmd.Flags().Changed("always") && one:
				return cli.UsageError("--always sets what happens from now on: it cannot go with --run, --step, --format or --complete")
			case cmd.Flags().Changed("always"):
				return adoptAlways(cmd.Context(), env, l, always, quiet)
			case run == "" || !cmd.Flags().Changed("step"):
				return cli.UsageError("name the step: give --run RUN and --step N")
			}
			into, err := cli.ParseRemote(run)
			if err != nil {
				return err
			}
			opts.Run, opts.Format = into.Path, adopt.Format(format)
			return ckptAdopt(cmd.Context(), env, l, into, opts)
		},
	}
	f := cmd.Flags()
	f.StringVar(&run, "run", "", "the run; it is made if it is missing")
	f.Uint64Var(&opts.Step, "step", 0, "number of the step")
	f.StringVar(&format, "format", "", "dcp, megatron or hf (default: the one whose files are there)")
	f.BoolVar(&opts.Complete, "complete", false, "all ranks have written and nothing writes there: take it without the word of the file that is written last")
	f.StringVar(&always, "always", "", "adopt directories below DIR by themselves: those of dcp, megatron or hf; "+
		"\"never\", also if a directory above says so; \"inherit\" what the directory above says")
	f.DurationVar(&quiet, "quiet", 0, "with --always: how long nothing in a directory may change before it is adopted "+
		"(default: 10s, and 30s for hf)")
	return cmd
}

func ckptAdopt(ctx context.Context, env *cli.Env, l, into cli.Location, opts adopt.Options) error {
	c, err := env.DialHosts(ctx, l.Hosts, client.Config{})
	if err != nil {
		return err
	}
	defer c.Close()
	info, err := adopt.Dir(ctx, c.Client, l.Path, opts)
	if err != nil {
		return cli.Named(err, l)
	}
	if env.Global.JSON {
		return cli.PrintJSON(env.Out, describeStep(info))
	}
	env.Note("step %d of %s is committed at level %s: the files of %s, %s, in %s", info.Step, into, info.Level, l, cli.Size(info.Bytes), info.Path)
	return nil
}

// inherit is what --always says for the policy of the directory above.
const inherit = "inherit"

// adoptPolicy is what `ckpt adopt --always` prints.
type adoptPolicy struct {
	Path   jsonname.Name `json:"path"`
	Format string        `json:"format"` // dcp, megatron, hf, never or inherit
	Quiet  float64       `json:"quiet_seconds,omitempty"`
}

func adoptAlways(ctx context.Context, env *cli.Env, l cli.Location, format string, quiet time.Duration) error {
	c, err := env.DialHosts(ctx, l.Hosts, client.Config{})
	if err != nil {
		return err
	}
	defer c.Close()
	attr, err := c.Stat(ctx, l.Path)
	if err != nil {
		return err
	}
	if !attr.IsDir() {
		return cli.UsageError("%s is not a directory: name the one that has the directories of the steps", l)
	}
	f := adopt.Format(format)
	if format == inherit {
		f = ""
	}
	if err := adopt.SetPolicy(ctx, c.Client, attr.Inode(), f, quiet); err != nil {
		return cli.Named(err, l, attr.Inode())
	}
	if env.Global.JSON {
		return cli.PrintJSON(env.Out, adoptPolicy{jsonname.Name(l.String()), format, quiet.Seconds()})
	}
	switch f {
	case "":
		env.Note("below %s holds what the directory above says", l)
	case adopt.Never:
		env.Note("no directory below %s becomes a step by itself", l)
	default:
		env.Note("complete directories of format %s below %s become steps by themselves (`moraine job ls --all` shows how that goes)", f, l)
	}
	return nil
}
