// Package benchcmd has the commands below `moraine bench`. Package internal/bench measures.
//
// One path through it: `moraine bench write` -> benchIn starts a cluster of processes for
// each mode -> the benchmark runs over sessions of this process and of workers (the hidden
// command worker) -> printLines shows the figures.
package benchcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/bench"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/spf13/cobra"
)

// benchOptions are the flags of `moraine bench`.
type benchOptions struct {
	dir, path, s3 string
	modes         []string
	bytes         cli.SizeFlag
	workingSet    cli.SizeFlag
	clients       int
	inodes        uint64
	sessions      int
	leases        int
	contentEvery  uint64
	large         uint64
	state         string
	cache         cli.SizeFlag
	down          time.Duration
	rate          float64
	seconds       float64
	how           []string
	scheme        string
	noForeground  bool
	repeat        int
	ranks         uint32
	tensors       int
	profile       string
	python        string
	rounds        int
}

// benchmark is one benchmark of `moraine bench`; cluster is what its cluster has beside
// metadata servers and chunkservers.
type benchmark struct {
	name, short string
	clients     int
	cluster     devcluster.Config
	run         func(context.Context, *bench.Env) ([]bench.Line, error)
}

// alone reports whether the benchmark starts its own servers, or needs none.
func (b *benchmark) alone() bool {
	return b.name == "load" || b.name == "scale" || b.name == "scale-mount" || b.name == "followers"
}

// inMemory reports whether the benchmark also measures reads from the memory of
// chunkservers. It then gives them more memory.
func (b *benchmark) inMemory() bool {
	return b.name == "write" || b.name == "read" || b.name == "ckpt" || b.name == "torch"
}

// benchmarks in the order of `bench all`.
var benchmarks = []benchmark{
	{"write", "sequential write: durable, compared with disk/1.5; to level memory, compared with " +
		"loopback/1.5", 1, devcluster.Config{}, bench.Write},
	{"read", "sequential read: cold, compared with the disk; from memory, compared with loopback; with " +
		"a chunkserver that hangs and with two dead ones, compared with the cold one; random reads " +
		"from memory", 1, devcluster.Config{}, bench.Read},
	{"meta", "creates, stats, listings, commits, renames and removals; changes are compared with bare " +
		"Raft", 64, devcluster.Config{}, bench.Meta},
	{"failover", "elections under full load, then the time until the next mutation after a leader is " +
		"killed, hangs, or loses its network (--how; 21 times each)", 64, devcluster.Config{Chunkservers: 1}, bench.Failover},
	{"leases", "sessions that renew leases: CPU and memory of the metadata leader, compared with the " +
		"same sessions without leases", 1, devcluster.Config{Chunkservers: 1}, bench.Leases},
	{"load", "write a state of --inodes inodes to --state, for scale, scale-mount and followers", 64, devcluster.Config{}, bench.Load},
	{"scale", "metadata servers on the state in --state (or one of --inodes): disk, memory, snapshot " +
		"and restart; creates and stats compared with an empty state", 64, devcluster.Config{}, bench.Scale},
	{"scale-mount", "a mount of the state in --state: ls of its directory of --large files, find of " +
		"everything, rm -r of that directory; memory of the mount and of the leader", 1, devcluster.Config{}, bench.ScaleMount},
	{"followers", "a follower that catches up from the log, and one that needs a snapshot, on the " +
		"state in --state, while clients create files at --rate", 64, devcluster.Config{}, bench.Followers},
	{"s3", "the S3 endpoint: PUT, compared with disk/1.5, and cold GET, compared with the disk", 1, devcluster.Config{S3: true}, bench.S3},
	{"flush", "flush files to the bucket, compared with a plain S3 client", 1, devcluster.Config{ObjectServer: true}, bench.Flush},
	{"stage", "stage evicted files from the bucket, compared with a plain S3 client", 1, devcluster.Config{ObjectServer: true}, bench.Stage},
	{"ckpt", "checkpoints of four ranks through the agent of their node: stall, time to each level, " +
		"restores from each level and by other numbers of ranks, a training loop beside them; with " +
		"--repeat the memory of many saves in a row", 1,
		devcluster.Config{ObjectServer: true, MetadataArgs: benchRemoval}, bench.Ckpt},
	{"torch", "the same state saved and restored by stock PyTorch: torch.save and DCP's FileSystemWriter on " +
		"--dir, FileSystemWriter on a mount, and our writer: stall, time until durable, cold restore", 1,
		devcluster.Config{MetadataArgs: benchRemoval}, bench.Torch},
	{"ckpt-size", "a checkpoint of --ranks ranks with --tensors tensors each: time from the last seal to " +
		"the commit, memory of the metadata servers, how much of the index a rank reads", 1,
		devcluster.Config{}, bench.CkptSize},
	{"rebuild", "a chunkserver of --bytes is killed for good: time until full redundancy, compared " +
		"with the disk; reads and writes of a foreground load meanwhile", 1,
		devcluster.Config{MetadataArgs: []string{"--repair-grace", bench.RebuildGrace.String()}}, bench.Rebuild},
}

// rebuildBytes is what the killed chunkserver keeps, unless --bytes gives another size.
const rebuildBytes = 10 << 30

// of returns the options of one benchmark.
func (o benchOptions) of(b benchmark, cmd *cobra.Command) benchOptions {
	if b.name == "rebuild" && !cmd.Flags().Changed("bytes") {
		o.bytes = rebuildBytes
	}
	if b.name == "ckpt" {
		o = o.ofCkpt(cmd)
	}
	if b.name == "torch" && !cmd.Flags().Changed("bytes") && !cmd.Flags().Changed("size") {
		o.bytes = torchBytes
	}
	return o
}

// NewBenchCommand returns `moraine bench`.
func NewBenchCommand(env *cli.Env) *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:     "bench",
		GroupID: cli.GroupServers,
		Short:   "Measure: each figure with the physical limit of the same run beside it",
		Long: `Each benchmark starts its own cluster unless --endpoint names one: 3 metadata servers
and 6 chunkservers, each a process, with every sync. With --path it does the same work
on any mounted file system.

It prints a line for each figure (with --json an object): the value, the physical limit
measured in the same run, and their ratio. The line also has CPU seconds per GB (per million
operations for ops/s), bytes of the device, and syncs. docs/BENCHMARKS.md explains the method.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	f := cmd.PersistentFlags()
	f.StringVar(&o.dir, "dir", "", "directory for the cluster and the limits (default: a temporary one)")
	f.StringVar(&o.path, "path", "", "do the work on this mounted file system instead of a cluster")
	f.StringVar(&o.s3, "s3-endpoint", "", "URL of the S3 endpoint that bench s3 measures, with "+
		"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (default: it starts one)")
	f.StringSliceVar(&o.modes, "modes", []string{"crc", "secure"}, "transport modes to measure, one "+
		"after the other, each on its own cluster")
	o.bytes = 4 << 30
	f.Var(&o.bytes, "bytes", "bytes to move; a record needs 4GiB (rebuild: how much one chunkserver "+
		"keeps, 10GiB)")
	o.workingSet = 16 << 30
	f.Var(&o.workingSet, "working-set", "how much write keeps on the disk at most, with parity; with "+
		"more --bytes it overwrites files in turn")
	f.IntVar(&o.clients, "clients", 0, "processes that read or write at the same time, or clients for "+
		"meta (default 1, and 64 for meta)")
	f.Uint64Var(&o.inodes, "inodes", 1_000_000, "number of inodes that bench load makes")
	f.Uint64Var(&o.contentEvery, "content-every", 1, "of the files that bench load makes, one in this "+
		"many has a stripe of 4+2")
	f.Uint64Var(&o.large, "large", 0, "number of files of one more directory that bench load makes, for "+
		"bench scale-mount")
	f.StringVar(&o.state, "state", "", "directory of the state that bench load writes, for bench "+
		"scale, scale-mount and followers")
	o.cache = 1 << 30
	f.Var(&o.cache, "cache", "--cache of the metadata servers of bench scale, scale-mount and followers")
	f.DurationVar(&o.down, "down", 5*time.Minute, "how long bench followers stops a follower")
	f.Float64Var(&o.rate, "rate", 5000, "files a second that bench followers creates")
	f.IntVar(&o.sessions, "sessions", 1000, "number of sessions that bench leases opens")
	f.IntVar(&o.leases, "leases", 1000, "number of leases that each of these sessions takes")
	f.Float64Var(&o.seconds, "seconds", 5, "how long small operations run")
	f.StringSliceVar(&o.how, "how", []string{"kill", "stop"}, "what bench failover does to leaders, in "+
		"this order: kill (the process ends), stop (it hangs, with its connections open), vanish (its "+
		"host leaves the network, which needs root)")
	f.StringVar(&o.scheme, "scheme", "4+2", "scheme of the data that bench rebuild repairs: K+M, or xN "+
		"for copies")
	f.BoolVar(&o.noForeground, "no-foreground", false, "rebuild without a foreground load")
	f.StringVar(&o.profile, "cpuprofile", "", "write a CPU profile of each worker to FILE.PID")
	for _, b := range benchmarks {
		one := &cobra.Command{Use: b.name, Short: b.short, Args: cobra.NoArgs, Example: "  moraine bench " + b.name + " --json",
			RunE: func(cmd *cobra.Command, _ []string) error { return runBenchmark(cmd.Context(), env, o.of(b, cmd), b) }}
		switch b.name {
		case "ckpt":
			o.addCkptFlags(one)
		case "ckpt-size":
			o.addSizeFlags(one)
		}
		if b.name == "torch" {
			o.addTorchFlags(one)
		}
		cmd.AddCommand(one)
	}
	cmd.AddCommand(&cobra.Command{Use: "all", Short: "all of them, one after the other", Args: cobra.NoArgs, Example: "  moraine bench all --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, b := range benchmarks {
				if b.name == "load" || b.name == "torch" || b.name == "scale-mount" && o.large == 0 {
					continue // scale and followers make their own state, and PyTorch is seldom there
				}
				if err := runBenchmark(cmd.Context(), env, o.of(b, cmd), b); err != nil {
					return fmt.Errorf("%s: %w", b.name, err)
				}
			}
			return fuseOfAll(cmd.Context(), env, o)
		}})
	cmd.AddCommand(newBenchFuseCommand(env, &o), newBenchFuseWorkerCommand())
	cmd.AddCommand(newBenchWorkerCommand(env, &o), newBenchRaftNodeCommand(env))
	return cmd
}

// runBenchmark runs one benchmark, in each mode.
func runBenchmark(ctx context.Context, env *cli.Env, o benchOptions, b benchmark) error {
	if o.path != "" {
		// A misspelt name would measure another disk.
		if st, err := os.Stat(o.path); err != nil || !st.IsDir() {
			return cli.UsageError("--path %s: name a directory of the file system to measure", o.path)
		}
	}
	if b.name == "torch" {
		if err := bench.CheckTorch(ctx, o.python); err != nil {
			return err
		}
	}
	modes := o.modes
	if o.path != "" || o.s3 != "" || env.Global.Endpoint != "" {
		modes = []string{env.Global.Mode}
	}
	if b.alone() {
		modes = modes[:1] // there is no network in it
	}
	for i, mode := range modes {
		suffix := ""
		if i > 0 {
			suffix = "-" + mode
		}
		lines, err := benchIn(ctx, env, o, b, mode, suffix)
		if len(lines) > 0 || err == nil {
			err = errors.Join(printLines(env, lines), err) // also what was measured before an error
		}
		if err != nil {
			return err
		}
	}
	return nil
}
