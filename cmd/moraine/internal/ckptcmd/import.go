package ckptcmd

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/morainefs/moraine/client/ckpt/huggingface"
	"github.com/morainefs/moraine/client/ckpt/localfiles"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
)

func newCkptImportCommand(env *cli.Env) *cobra.Command {
	s := saver{env: env, level: "nvme"}
	s.opts.World = 1
	cmd := &cobra.Command{
		Use:   "import DIR RUN --step N",
		Short: "Save a model directory of Hugging Face's libraries as a step",
		Long: `Save a model directory, as "huggingface-cli download" and save_pretrained write it, as step N
of RUN: each tensor of its safetensors files whole, and its other files (config.json, the
tokenizer, ...) with them. If the directory has model.safetensors.index.json, its safetensors files
are those that the index lists, and each tensor must be where the index says. Directories, hidden
files and other safetensors files are left out; the command names them.

Any number of ranks can then restore slices of the tensors. "ckpt export" writes a directory again,
also of the steps that a training job saved. "ckpt restore" brings back exactly these files.

The command reads the files in place, and needs no memory for them. Do not change them meanwhile.`,
		Example: "  moraine ckpt import ./Llama-3-8B moraine:///runs/llama --step 0",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := s.parse(cmd, args[1]); err != nil {
				return err
			}
			d, err := huggingface.Find(args[0])
			if err != nil {
				return err
			}
			local, err := localfiles.Open(d.Files)
			if err != nil {
				return err
			}
			defer local.Close() // after the run: then no save reads them
			if err := d.Check(local); err != nil {
				return err
			}
			for _, name := range d.Skipped {
				fmt.Fprintf(env.Err, "left out: %s\n", cli.Visible(name))
			}
			return s.save(cmd.Context(), local)
		},
	}
	s.flags(cmd)
	return cmd
}
