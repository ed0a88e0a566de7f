package ckptcmd

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/serve"
	drillmetrics "github.com/morainefs/moraine/internal/drill"
	"github.com/spf13/cobra"
)

// drillRow is what `ckpt drill` prints of a level.
type drillRow struct {
	exposure
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"restore_seconds"`
	// Rate is in bytes a second.
	Rate float64 `json:"restore_rate"`
	// From is where the bytes came from: levels, separated by commas.
	From  string `json:"read_from,omitempty"`
	Error string `json:"error,omitempty"`
}

// drillFlags are the flags of `ckpt drill`.
type drillFlags struct {
	every   time.Duration
	metrics string
}

func newCkptDrillCommand(env *cli.Env) *cobra.Command {
	var o drillFlags
	cmd := &cobra.Command{
		Use:   "drill RUN",
		Short: "Restore the newest checkpoint of each level into memory, and measure it",
		Long: `Read the newest good checkpoint of each level into memory, as a restore does, and verify every
byte. The levels are memory, nvme and object. For each level the command prints how long the restore
took, where the bytes came from, and what a crash now would lose if only that level
and safer ones survived it.

The checkpoint of level object is read from the bucket, though devices have it, too. This needs a
certificate that is not confined to a directory; with another one the bytes come from the nearest place, as
the column "read from" says. Those of memory and nvme come from the chunkservers, or from the bucket if
they have left the devices; a checkpoint that is the newest of both is read once.

The exit code is 1 if a level has a checkpoint that cannot be restored. With --every the command
goes on, until it is interrupted, and the exit code is that of the last drill.`,
		Example: `  moraine ckpt drill moraine:///runs/llama
  moraine ckpt drill moraine:///runs/llama --every 1h --metrics 127.0.0.1:7431 --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.every < 0 {
				return cli.UsageError("--every %v: write a time above 0", o.every)
			}
			if o.metrics != "" && o.every == 0 {
				return cli.UsageError("--metrics serves the results of repeated drills: give --every too")
			}
			return ckptDrill(cmd.Context(), env, args[0], o)
		},
	}
	cmd.Flags().DurationVar(&o.every, "every", 0, "time between the starts of two drills (default: one drill)")
	cmd.Flags().StringVar(&o.metrics, "metrics", "", "address of /metrics, /healthz and /debug/pprof (default: none)")
	return cmd
}

func ckptDrill(ctx context.Context, env *cli.Env, arg string, o drillFlags) (err error) {
	run, c, l, err := openRunOf(ctx, env, arg)
	if err != nil {
		return err
	}
	defer c.Close()
	reg := serve.NewRegistry()
	m := drillmetrics.NewMetrics(reg)
	if o.metrics != "" {
		adm, err := serve.ListenAdmin(o.metrics, reg, func() error { return nil })
		if err != nil {
			return err
		}
		ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
		ended := make(chan error, 1)
		go func() { ended <- adm.Run(ctx) }()
		defer func() {
			stop()
			<-ended
		}()
	}
	var failed error
	for {
		began := time.Now()
		rows, err := drill(ctx, env, c, run)
		if cli.IsInterrupt(ctx, err) || ctx.Err() != nil && o.every > 0 {
			return failed
		}
		failed = nil
		if err != nil {
			m.Broken()
			failed = cli.Named(err, l, run.ID())
		} else {
			for _, r := range rows {
				m.Set(r.result())
			}
			if err := printDrill(env, rows); err != nil {
				return err
			}
			failed = unrestorable(rows)
		}
		if o.every == 0 {
			return failed
		}
		if failed != nil {
			fmt.Fprintf(env.Err, "%v\n", cli.Visible(failed.Error()))
		}
		select {
		case <-ctx.Done():
			return failed
		case <-time.After(time.Until(began.Add(o.every))):
		}
	}
}

// drill restores the newest step of each level. A step that is the newest of memory and nvme is read once.
func drill(ctx context.Context, env *cli.Env, c *cli.Connection, run *ckpt.Run) ([]drillRow, error) {
	_, levels, err := exposureOf(ctx, c, run)
	if err != nil {
		return nil, err
	}
	var rows []drillRow
	for n, e := range levels {
		row := drillRow{exposure: e}
		switch {
		case !e.found():
		case moraine.Memory+moraine.Level(n) == moraine.NVMe && e.Step == levels[n-1].Step && e.Attempt == levels[n-1].Attempt:
			before := rows[n-1]
			row.Bytes, row.Seconds, row.Rate, row.Error, row.From = before.Bytes, before.Seconds, before.Rate, before.Error, before.From
		default:
			if err := row.restore(ctx, env, run, moraine.Memory+moraine.Level(n)); err != nil {
				return nil, err
			}
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// restore reads and verifies the step of the row, the newest of a level. It returns an error only if ctx has ended.
func (r *drillRow) restore(ctx context.Context, env *cli.Env, run *ckpt.Run, level moraine.Level) error {
	var from moraine.Level // any
	if level == moraine.Object {
		from = moraine.Object
	}
	began := time.Now()
	err := r.read(ctx, env, run, level, from)
	if from != 0 && moraine.KindOf(err) == moraine.PermissionDenied { // a confined session reads no object by itself
		began = time.Now()
		err = r.read(ctx, env, run, level, 0)
	}
	if err != nil {
		r.Error = err.Error()
		return ctx.Err()
	}
	r.Seconds = time.Since(began).Seconds()
	r.Rate = float64(r.Bytes) / r.Seconds
	return nil
}

// read reads and verifies the step, from one level or from the nearest place.
func (r *drillRow) read(ctx context.Context, env *cli.Env, run *ckpt.Run, level, from moraine.Level) error {
	k, err := run.Resolve(ctx, ckpt.ResolveOptions{Level: level, Step: r.Step, Exact: true, Read: ckpt.ReadOptions{From: from}})
	if err != nil {
		return err
	}
	defer k.Close() // nothing is written
	report, err := verified(ctx, env, k)
	r.Bytes, r.From = report.Bytes, placesOf(report, k.Info.Level)
	return err
}

// placesOf says where the bytes of a step came from.
func placesOf(report ckpt.Report, level moraine.Level) string {
	near := min(level, moraine.NVMe).String()
	switch report.FromObject {
	case 0:
		return near
	case report.Bytes:
		return moraine.Object.String()
	}
	return near + "," + moraine.Object.String()
}

// result returns what the metrics show.
func (r *drillRow) result() drillmetrics.Result {
	return drillmetrics.Result{Level: r.Level, Committed: r.Committed, LostSteps: r.LostSteps, Lost: time.Duration(r.LostSeconds * float64(time.Second)),
		Restored: r.Error == "", Bytes: r.Bytes, Took: time.Duration(r.Seconds * float64(time.Second))}
}

// unrestorable is the error of a drill in which a level has a step that could not be restored.
func unrestorable(rows []drillRow) error {
	var bad []string
	for _, r := range rows {
		if r.Error != "" {
			bad = append(bad, fmt.Sprintf("level %s: step %d (attempt %d): %s", r.Level, r.Step, r.Attempt, r.Error))
		}
	}
	if len(bad) == 0 {
		return nil
	}
	return fmt.Errorf("not restored: %s (moraine ckpt restore --fallback finds the newest step that can be)", strings.Join(bad, "; "))
}

func printDrill(env *cli.Env, rows []drillRow) error {
	return cli.List(env, rows, table.Row{"level", "step", "restored", "read from", "time", "rate", "lost steps", "lost time"}, func(r drillRow) table.Row {
		lost := time.Duration(r.LostSeconds * float64(time.Second)).Round(time.Second)
		switch {
		case !r.found():
			return table.Row{r.Level, "none", "", "", "", "", "all", "all"}
		case r.Error != "":
			return table.Row{r.Level, r.Step, "FAILED", "", "", "", r.LostSteps, lost}
		}
		return table.Row{r.Level, r.Step, cli.Size(uint64(r.Bytes)), r.From, inSeconds(r.Seconds), cli.Size(uint64(r.Rate)) + "/s", r.LostSteps, lost}
	})
}
