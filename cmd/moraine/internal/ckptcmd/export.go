package ckptcmd

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/huggingface"
	"github.com/morainefs/moraine/cmd/moraine/internal/bucketflags"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/filecmd"
	"github.com/morainefs/moraine/internal/jsonname"
)

// exportOptions are the flags of `ckpt export`.
type exportOptions struct {
	choice stepChoice
	shard  cli.SizeFlag
	bucket bucketflags.Flags
}

// exported is what `ckpt export --json` prints.
type exported struct {
	Step    uint64        `json:"step"`
	Attempt uint32        `json:"attempt"`
	Files   int           `json:"files"`
	Shards  int           `json:"shards"`
	Tensors int           `json:"tensors"`
	Bytes   int64         `json:"bytes"`
	To      jsonname.Name `json:"to"`
}

func newCkptExportCommand(env *cli.Env) *cobra.Command {
	o := exportOptions{shard: huggingface.DefaultShardBytes}
	cmd := &cobra.Command{
		Use:   "export RUN DIR|s3://BUCKET/PREFIX",
		Short: "Write a checkpoint as a model directory of Hugging Face's libraries",
		Long: `Write the tensors of a checkpoint, whole, as model-00001-of-0000N.safetensors with
model.safetensors.index.json: what from_pretrained and safetensors read. The command joins the
slices that the ranks of the training job saved. It needs less than 200 MiB of memory, however
large the model is. The index is written last: a directory that has it is complete.

Of a step that "ckpt import" or "ckpt save" made, the other files (config.json, the tokenizer, ...)
and the metadata of the safetensors files are written too. Of other steps put config.json there
yourself. Blobs of trainers are not exported.

DIR is made if it is missing; it must be empty. A bucket is reached with the usual AWS_* variables,
or the flags --bucket-*. Bytes that are damaged at one level come from the next; a warning names
them. Nobody can remove the checkpoint meanwhile.`,
		Example: `  moraine ckpt export moraine:///runs/llama ./llama-step-1000 --step 1000
  moraine ckpt export moraine:///runs/llama s3://models/llama --shard-size 2GB`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := cli.ParseRemote(args[0])
			if err != nil {
				return err
			}
			if o.shard == 0 {
				return cli.UsageError("--shard-size must be more than 0")
			}
			return ckptExport(cmd.Context(), env, l, args[1], o)
		},
	}
	o.choice.flags(cmd)
	cmd.Flags().Var(&o.shard, "shard-size", "most bytes of the tensors of one file; a larger tensor has a file of its own")
	o.bucket.AddFlags(cmd.Flags())
	return cmd
}

func ckptExport(ctx context.Context, env *cli.Env, l cli.Location, to string, o exportOptions) error {
	open := func() (writer, error) { return openDir(env, to) }
	if strings.HasPrefix(to, "s3://") {
		open = func() (writer, error) { return openBucket(ctx, env, to, &o.bucket) }
	}
	k, c, err := openCheckpoint(ctx, env, l, o.choice)
	if err != nil {
		return err
	}
	defer c.Close()
	defer k.Close()
	e, err := huggingface.NewExport(ctx, k, huggingface.Options{ShardBytes: int64(o.shard)})
	if err != nil {
		return err
	}
	w, err := open()
	if err != nil {
		return err
	}
	var copies []fileCopy
	for i := range e.Files {
		copies = append(copies, fileCopy{e.Files[i].Name, e.Files[i].Size, e.Files[i].Write})
	}
	err = w.writeAll(ctx, copies)
	warnOfBadRanges(env, k)
	if err != nil {
		return err
	}
	return reportExport(env, l, k, e, to)
}

func reportExport(env *cli.Env, l cli.Location, k *ckpt.Checkpoint, e *huggingface.Export, to string) error {
	if env.Global.JSON {
		return cli.PrintJSON(env.Out, exported{Step: k.Info.Step, Attempt: k.Info.Attempt, Files: len(e.Files), Shards: e.Shards, Tensors: e.Tensors, Bytes: e.TensorBytes, To: jsonname.Name(to)})
	}
	env.Note("step %d of %s: %s, %s, in %s of %s", k.Info.Step, l, cli.CountOf(e.Tensors, "tensor"), cli.Size(uint64(e.TensorBytes)), cli.CountOf(len(e.Files), "file"), to)
	return nil
}

// writer is where an export goes.
type writer interface {
	// writeAll writes the files in order. After an error none of them is left.
	writeAll(ctx context.Context, copies []fileCopy) error
}

// openDir makes a directory for an export. One that has something is refused: files of two exports
// would be loaded together.
func openDir(env *cli.Env, dir string) (writer, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	if len(entries) > 0 {
		return nil, cli.AsWrongUse(fmt.Errorf("%s is not empty: it has %s. Name a new directory, or empty this one", dir, entries[0].Name()))
	}
	return &target{env: env, dir: dir, mode: 0o644 &^ filecmd.ReadUmask(), done: "exported"}, nil
}

func (t *target) writeAll(ctx context.Context, copies []fileCopy) error {
	t.copies = copies
	return t.write(ctx)
}
