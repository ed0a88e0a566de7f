package mountcmd

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/fuse/observe"
)

// opStats is what one kind of operation did in an interval.
type opStats struct {
	Operation string  `json:"operation"`
	Count     uint64  `json:"count"`
	PerSecond float64 `json:"per_s"`
	Errors    uint64  `json:"errors"`
	Bytes     uint64  `json:"bytes"`
	P50       float64 `json:"p50_ms"`
	P99       float64 `json:"p99_ms"`
	// Seconds is the sum of all durations. Several run at once.
	Seconds float64 `json:"seconds"`
}

// mountStats is what a mount did in an interval.
type mountStats struct {
	Time        time.Time `json:"time"`
	Dir         string    `json:"dir"`
	Seconds     float64   `json:"interval_s"`
	Operations  float64   `json:"operations_per_s"`
	Errors      uint64    `json:"errors"`
	Read        float64   `json:"read_bytes_per_s"`
	Written     float64   `json:"written_bytes_per_s"`
	P50         float64   `json:"p50_ms"`
	P99         float64   `json:"p99_ms"`
	CacheHits   uint64    `json:"cache_hits"`
	CacheMisses uint64    `json:"cache_misses"`
	OpenFiles   int       `json:"open_files"`
	MemoryBytes uint64    `json:"memory_bytes"`
	By          []opStats `json:"by_operation"`
}

// statsOf compares two looks at a mount.
func statsOf(was, now status) mountStats {
	if now.Pid != was.Pid {
		was = status{} // the directory was mounted again, and the new process counts from 0
	}
	seconds := max(1e-9, now.Seconds-was.Seconds)
	d := now.Operations.Since(was.Operations)
	total := d.Total()
	return mountStats{Time: time.Now().UTC(), Dir: now.Dir, Seconds: seconds, Operations: float64(total.Count) / seconds, Errors: total.Errors,
		Read: float64(d["read"].Bytes) / seconds, Written: float64(d["write"].Bytes) / seconds, P50: ms(total.Quantile(0.5)), P99: ms(total.Quantile(0.99)),
		CacheHits: now.CacheHits - was.CacheHits, CacheMisses: now.CacheMisses - was.CacheMisses,
		OpenFiles: now.OpenFiles, MemoryBytes: now.MemoryBytes, By: byOperation(d, seconds)}
}

// byOperation lists the operations, those that took the most time first.
func byOperation(d observe.Snapshot, seconds float64) []opStats {
	by := []opStats{}
	for name, op := range d {
		by = append(by, opStats{name, op.Count, float64(op.Count) / seconds, op.Errors, op.Bytes, ms(op.Quantile(0.5)), ms(op.Quantile(0.99)), time.Duration(op.Nanos).Seconds()})
	}
	slices.SortFunc(by, func(a, b opStats) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), strings.Compare(a.Operation, b.Operation))
	})
	return by
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// NewStatsCommand returns `moraine stats`.
func NewStatsCommand(env *cli.Env) *cobra.Command {
	var (
		interval time.Duration
		count    int
	)
	cmd := &cobra.Command{
		Use:     "stats DIR",
		GroupID: cli.GroupFiles,
		Short:   "Show live what a mount does",
		Long: `Show every --interval what programs do on the mount DIR: operations and bytes a second, the
median latency and that which one operation in a hundred exceeds, hits of the mount's cache, open
files, and the memory of the mount's process. --json also has each kind of operation. Only the user
who mounted DIR, and root, may see it.`,
		Example: `  moraine stats /mnt/moraine
  moraine stats /mnt/moraine --count 1 --interval 10s --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if interval < 10*time.Millisecond || count < 0 {
				return cli.UsageError("--interval is 10ms at least, and --count not negative")
			}
			d, err := findDaemon(args[0])
			if err != nil {
				return err
			}
			return showStats(cmd.Context(), env, d, interval, count)
		},
	}
	cmd.Flags().DurationVar(&interval, "interval", time.Second, "time of each line")
	cmd.Flags().IntVar(&count, "count", 0, "number of lines; 0: until Ctrl-C")
	return cmd
}

// linesOfHead is how many lines follow a head.
const linesOfHead = 20

func showStats(ctx context.Context, env *cli.Env, d *daemon, interval time.Duration, count int) error {
	was, err := d.status(ctx)
	if err != nil {
		return err
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for i := 0; count == 0 || i < count; i++ {
		select {
		case <-ctx.Done():
			if count == 0 {
				return nil
			}
			return ctx.Err()
		case <-tick.C:
		}
		now, err := d.status(ctx)
		if err != nil {
			return err
		}
		s := statsOf(was, now)
		was = now
		if env.Global.JSON {
			if err := cli.PrintJSON(env.Out, s); err != nil {
				return err
			}
			continue
		}
		if i%linesOfHead == 0 {
			fmt.Fprintf(env.Out, "%10s %7s %12s %12s %9s %9s %9s %9s %6s %10s\n", "OPS/S", "ERRORS", "READ/S", "WRITTEN/S", "P50 MS", "P99 MS", "HITS", "MISSES", "OPEN", "MEMORY")
		}
		fmt.Fprintf(env.Out, "%10.1f %7d %12s %12s %9.3f %9.3f %9d %9d %6d %10s\n", s.Operations, s.Errors, cli.Size(uint64(s.Read)), cli.Size(uint64(s.Written)),
			s.P50, s.P99, s.CacheHits, s.CacheMisses, s.OpenFiles, cli.Size(s.MemoryBytes))
	}
	return nil
}

// operationTable prints operations for people.
func operationTable(env *cli.Env, by []opStats) {
	rows := make([]table.Row, len(by))
	for i, o := range by {
		rows[i] = table.Row{o.Operation, o.Count, fmt.Sprintf("%.1f", o.PerSecond), fmt.Sprintf("%.3f", o.Seconds), fmt.Sprintf("%.3f", o.P50), fmt.Sprintf("%.3f", o.P99),
			cli.Size(o.Bytes), o.Errors}
	}
	cli.PrintTable(env.Out, table.Row{"operation", "count", "a second", "seconds", "p50 ms", "p99 ms", "bytes", "errors"}, rows)
}
