package main

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/spf13/cobra"
)

func (a *app) ckptRestoreCommand() *cobra.Command {
	var choice stepChoice
	cmd := &cobra.Command{
		Use:   "restore RUN DIR",
		Short: "Copy a checkpoint's files into a local directory, each checked against its sum",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			ctx := cmd.Context()
			l, err := parseRemote(args[0])
			if err != nil {
				return err
			}
			k, c, err := a.openCheckpoint(ctx, l, choice)
			if err != nil {
				return err
			}
			defer c.Close()
			defer k.Close()
			if err := os.MkdirAll(args[1], 0o755); err != nil {
				return err
			}
			var total int64
			for _, f := range k.Files() {
				total += f.Size
			}
			b := a.startBar("restored", total)
			defer func() { b.finish(err) }()
			for _, f := range k.Files() {
				if err := restoreFile(ctx, c, path.Join(l.path, k.Info.Path, f.Name), filepath.Join(args[1], f.Name), f, b); err != nil {
					return err
				}
			}
			a.note("step %d of %s: %s, %s, in %s", k.Info.Step, l, countOf(len(k.Files()), "file"), size(uint64(total)), args[1])
			if a.global.json {
				return printJSON(a.out, describeStep(k.Info))
			}
			return nil
		},
	}
	choice.flags(cmd)
	return cmd
}

// restoreFile copies one file of a step to a local path; it appears when it is
// complete and its CRC is right.
func restoreFile(ctx context.Context, c *connection, from, to string, f ckpt.FileInfo, b *bar) error {
	return writeWhole(to, 0o644, func(tmp *os.File) error {
		sum := &crcWriter{}
		if err := copyOut(ctx, c.Client, from, writers{tmp, sum}, b); err != nil {
			return err
		}
		if sum.crc != f.CRC {
			return &moraine.Error{Op: "restore", Ref: f.Name, Kind: moraine.Corrupt, Err: fmt.Errorf("its CRC32C is %08x, not %08x", sum.crc, f.CRC)}
		}
		return nil
	})
}

// crcWriter sums what is written to it.
type crcWriter struct{ crc uint32 }

func (w *crcWriter) Write(p []byte) (int, error) {
	w.crc = crc.Update(w.crc, p)
	return len(p), nil
}

// writers writes to a file and to a sum.
type writers struct {
	file *os.File
	sum  *crcWriter
}

func (w writers) Write(p []byte) (int, error) {
	n, err := w.file.Write(p)
	_, _ = w.sum.Write(p[:n])
	return n, err
}
