package benchcmd

import (
	"github.com/morainefs/moraine/internal/bench"
	"github.com/spf13/cobra"
)

// ckptBytes is the size of a checkpoint of bench ckpt, unless --size gives another.
const ckptBytes = 2 << 30

// torchBytes is the size of the state of bench torch, unless --size gives another.
const torchBytes = 1 << 30

// benchRemoval are the arguments of metadata servers that soon delete the chunks of removed files.
var benchRemoval = []string{"--grace", bench.RotateGrace.String(), "--backup-horizon", "-1s"}

// addCkptFlags adds the flags that only bench ckpt has.
func (o *benchOptions) addCkptFlags(cmd *cobra.Command) {
	cmd.Flags().Var(&o.bytes, "size", "size of a checkpoint, all ranks together (2GiB)")
	cmd.Flags().IntVar(&o.repeat, "repeat", 0, "measure the memory of so many saves in a row, and nothing "+
		"else; a record needs 1000 of 256MiB")
}

// addTorchFlags adds the flags that only bench torch has.
func (o *benchOptions) addTorchFlags(cmd *cobra.Command) {
	cmd.Flags().Var(&o.bytes, "size", "size of the state, all ranks together (1GiB)")
	cmd.Flags().StringVar(&o.python, "python", "python3", "Python interpreter with PyTorch and the package moraine")
	cmd.Flags().IntVar(&o.rounds, "rounds", 3, "how many saves and restores of each way a figure is the median of")
}

// ofCkpt returns the options of bench ckpt.
func (o benchOptions) ofCkpt(cmd *cobra.Command) benchOptions {
	if !cmd.Flags().Changed("bytes") && !cmd.Flags().Changed("size") {
		o.bytes = ckptBytes
	}
	return o
}

// The size of bench ckpt-size, also of bench all.
const (
	sizeRanks   = 10_000
	sizeTensors = 1000
)

// addSizeFlags adds the flags that only bench ckpt-size has.
func (o *benchOptions) addSizeFlags(cmd *cobra.Command) {
	cmd.Flags().Uint32Var(&o.ranks, "ranks", sizeRanks, "number of ranks")
	cmd.Flags().IntVar(&o.tensors, "tensors", sizeTensors, "number of tensors, each of which has a slice on each rank")
}
