package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

func (a *app) ckptVerifyCommand() *cobra.Command {
	var choice stepChoice
	cmd := &cobra.Command{
		Use:   "verify RUN",
		Short: "Read every byte of a checkpoint and compare it with all checksums",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := parseRemote(args[0])
			if err != nil {
				return err
			}
			k, c, err := a.openCheckpoint(cmd.Context(), l, choice)
			if err != nil {
				return err
			}
			defer c.Close()
			defer k.Close()
			start := time.Now()
			report, err := k.Verify(cmd.Context())
			if err != nil {
				return err
			}
			if a.global.json {
				return printJSON(a.out, map[string]any{"step": k.Info.Step, "attempt": k.Info.Attempt, "files": report.Files,
					"tensors": report.Tensors, "bytes": report.Bytes, "digest": fmt.Sprintf("%x", report.Digest)})
			}
			a.note("step %d of %s is intact: %s in %s, %s read and checked in %v\ndigest %x",
				k.Info.Step, l, countOf(int(report.Tensors), "tensor"), countOf(int(report.Files), "file"), size(uint64(report.Bytes)), time.Since(start).Round(time.Millisecond), report.Digest)
			return nil
		},
	}
	choice.flags(cmd)
	return cmd
}
