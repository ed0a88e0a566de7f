package benchcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/bench"
	"github.com/morainefs/moraine/internal/bench/fusebench"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/spf13/cobra"
)

// fuseOptions are the flags that only bench fuse has.
type fuseOptions struct {
	paths, remounts, rows       []string
	mountArgs                   []string
	size                        cli.SizeFlag
	files, treeFiles, processes int
	rounds                      int
	pathsOnly, keep             bool
	mountProcess, serverProcess []string
}

// The sizes of bench fuse, also of bench all.
const (
	fuseSize      = 1 << 30
	fuseFiles     = 4000
	fuseTreeFiles = 3821
	fuseProcesses = 4
	fuseRounds    = 3
)

// newBenchFuseCommand returns `moraine bench fuse`.
func newBenchFuseCommand(env *cli.Env, o *benchOptions) *cobra.Command {
	f := fuseOptions{size: fuseSize}
	cmd := &cobra.Command{
		Use: "fuse", Args: cobra.NoArgs,
		Short: "a mount, side by side with other file systems (--path): large files by fio, small files, trees",
		Long: `Measure a mount of a cluster, and in the same run the directories of --path: large files with
fio, small files with processes of its own, a tree with tar, ls and rm. Each row runs on each of
them in turn, in --rounds; the median counts.

A cold row begins with empty caches. The mount of the cluster is mounted again, its chunkservers
are restarted, and the page cache is dropped, which needs root. A directory of --path gets the
command of its --remount, and then the page cache is dropped too. Each row says how it was done.`,
		Example: `  moraine bench fuse --json
  moraine bench fuse --path /var/tmp --rows create-4k,stat-cold,stat-warm
  moraine bench fuse --path /mnt/jfs --mount-process juicefs --server-process redis-server \
    --remount '/mnt/jfs=juicefs umount /mnt/jfs && juicefs mount -d redis://localhost /mnt/jfs'`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return benchFuse(cmd.Context(), env, *o, f, cmd.Flags().Changed("modes"))
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.paths, "path", nil, "directories of other file systems to measure in the same run")
	flags.BoolVar(&f.pathsOnly, "paths-only", false, "measure only these, and start no cluster")
	flags.StringArrayVar(&f.remounts, "remount", nil, "DIR=COMMAND: a shell command that empties the caches of the mount of that --path")
	flags.StringSliceVar(&f.mountProcess, "mount-process", nil, "names of the processes that serve a FUSE mount of --path, to count their CPU")
	flags.StringSliceVar(&f.serverProcess, "server-process", nil, "names of the processes behind it")
	flags.StringArrayVar(&f.mountArgs, "mount-arg", nil, "argument of the command that mounts the cluster, as --mount-arg=--no-xattrs")
	flags.StringSliceVar(&f.rows, "rows", nil, "measure only these rows")
	flags.IntVar(&f.rounds, "rounds", fuseRounds, "how many runs of each row a figure is the median of")
	flags.Var(&f.size, "size", "length of the large file")
	flags.IntVar(&f.files, "files", fuseFiles, "number of small files")
	flags.IntVar(&f.treeFiles, "tree-files", fuseTreeFiles, "number of files of the tree")
	flags.IntVar(&f.processes, "processes", fuseProcesses, "number of processes that work on small files, and of jobs of fio at random")
	flags.BoolVar(&f.keep, "keep", false, "leave the files of the last round")
	return cmd
}

// fuseOfAll is bench fuse as a part of bench all: fio may be missing there.
func fuseOfAll(ctx context.Context, env *cli.Env, o benchOptions) error {
	if _, err := exec.LookPath("fio"); err != nil {
		fmt.Fprintln(env.Err, "bench: fuse is left out: it needs fio, which is not installed")
		return nil
	}
	if o.path != "" {
		return nil // it mounts a cluster
	}
	return benchFuse(ctx, env, o, fuseOptions{size: fuseSize, files: fuseFiles, treeFiles: fuseTreeFiles, processes: fuseProcesses, rounds: fuseRounds}, false)
}

// benchFuse runs bench fuse in one transport mode: crc, unless a flag names another.
func benchFuse(ctx context.Context, env *cli.Env, o benchOptions, f fuseOptions, modes bool) (err error) {
	mode := "crc"
	switch {
	case env.Global.Endpoint != "":
		mode = env.Global.Mode
	case modes && len(o.modes) != 1:
		return cli.UsageError("--modes: bench fuse measures one mode at a time")
	case modes:
		mode = o.modes[0]
	}
	if o.dir == "" {
		if o.dir, err = os.MkdirTemp("", "moraine-bench-"); err != nil {
			return err
		}
		defer os.RemoveAll(o.dir)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	targets, err := f.targets()
	if err != nil {
		return err
	}
	cfg := fusebench.Config{Dir: o.dir, Size: int64(f.size), Files: f.files, TreeFiles: f.treeFiles, Processes: f.processes,
		Seconds: o.seconds, Rounds: f.rounds, Rows: f.rows, Keep: f.keep, Worker: []string{self, "bench", "fuse-worker"}, Disk: bench.Disk,
		Progress: func(format string, args ...any) { fmt.Fprintf(env.Err, "bench: "+format+" ...\n", args...) }}
	if err := fusebench.Check(cfg); err != nil {
		return cli.UsageError("%v", err)
	}
	if f.pathsOnly {
		return printFuse(ctx, env, cfg, targets)
	}
	return benchFuseCluster(ctx, env, o, mode, f.mountArgs, cfg, targets)
}

// benchFuseCluster adds a mount to the targets: of the cluster that the flags name, or of one of its
// own.
func benchFuseCluster(ctx context.Context, env *cli.Env, o benchOptions, mode string, mountArgs []string, cfg fusebench.Config, targets []fusebench.Target) (err error) {
	on, m := env, &fuseMount{dir: o.dir, profile: o.profile, args: mountArgs}
	if env.Global.Endpoint == "" {
		c, err := devcluster.Start(ctx, devcluster.Config{Dir: filepath.Join(o.dir, "cluster"), Mode: mode, LogStall: bench.ShippedLogStall})
		if err != nil {
			return err
		}
		defer os.RemoveAll(c.Dir())
		defer c.Close() //nolint:errcheck // it is removed
		on, m.cluster = onCluster(env, c, mode), c
	}
	m.env = on
	if err := m.start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.stop(ctx)) }()
	err = printFuse(ctx, env, cfg, append([]fusebench.Target{m.target()}, targets...))
	if m.cluster != nil {
		err = errors.Join(err, bench.AllRun(m.cluster))
	}
	return err
}

// printFuse measures and prints, also what was measured before an error.
func printFuse(ctx context.Context, env *cli.Env, cfg fusebench.Config, targets []fusebench.Target) error {
	rows, err := fusebench.Run(ctx, cfg, targets)
	if len(rows) == 0 && err != nil {
		return err
	}
	head := table.Row{"row", "path", "value", "unit", "cpu: bench", "mount", "servers", "unit", "limit", "of", "ratio", "cold"}
	return errors.Join(err, cli.List(env, rows, head, func(r fusebench.Row) table.Row {
		return table.Row{r.Row, r.Path, fmt.Sprintf("%.4g", r.Value), r.Unit, fmt.Sprintf("%.3g", r.CPUBench), known(r.CPUMount), known(r.CPUServers), r.CPUUnit,
			fmt.Sprintf("%.4g", r.Limit), r.LimitName, fmt.Sprintf("%.2f", r.Ratio), r.Cold}
	}))
}

func known(v *float64) string {
	if v == nil {
		return "?"
	}
	return fmt.Sprintf("%.3g", *v)
}

// newBenchFuseWorkerCommand is one process of bench fuse.
func newBenchFuseWorkerCommand() *cobra.Command {
	var spec string
	cmd := &cobra.Command{
		Use: "fuse-worker", Short: "One process of `bench fuse`", Hidden: true, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			w, err := fusebench.ParseWork(spec)
			if err != nil {
				return cli.UsageError("--work: %v", err)
			}
			return fusebench.RunWorker(w, os.Stdin, os.Stdout)
		},
	}
	cmd.Flags().StringVar(&spec, "work", "", "what to do, as JSON")
	return cmd
}
