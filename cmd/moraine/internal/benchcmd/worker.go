package benchcmd

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/serve"
	"github.com/morainefs/moraine/internal/address"
	"github.com/morainefs/moraine/internal/bench"
	"github.com/morainefs/moraine/internal/bench/bareraft"
	"github.com/morainefs/moraine/transport"
	"github.com/spf13/cobra"
)

// workerTargets returns the function that opens a worker's target, and the one that ends them all.
func workerTargets(env *cli.Env, o *benchOptions, op bench.Op) (open func(context.Context) (bench.Target, error), end func(), err error) {
	switch {
	case o.path != "":
		return func(context.Context) (bench.Target, error) { return bench.PathTarget(o.path), nil }, func() {}, nil
	case o.s3 != "":
		return func(context.Context) (bench.Target, error) { return bench.S3Target(&bench.S3Server{URL: o.s3}) }, func() {}, nil
	}
	if op == bench.OpSmallFile {
		return mountTargets(env), func() {}, nil
	}
	return sharedTargets(env)
}

// sharedTargets opens sessions that share the connections of this process, as
// the users of one mount do: the function that it returns opens one more.
func sharedTargets(env *cli.Env) (open func(context.Context) (bench.Target, error), closePool func(), err error) {
	sec, err := env.Security()
	if err != nil {
		return nil, nil, err
	}
	pool, err := sec.Pool(transport.RoleAdmin, fmt.Sprintf("bench-%d", os.Getpid()), transport.PoolDeps{})
	if err != nil {
		return nil, nil, err
	}
	open = func(ctx context.Context) (bench.Target, error) {
		c, err := client.Dial(ctx, client.Config{Metadata: address.SplitEndpoint(env.Global.Endpoint), MemoryBytes: 512 << 20}, client.Deps{Dialer: keptOpen{pool}})
		if err != nil {
			return nil, err
		}
		return bench.ClusterTarget(c, c.Close), nil
	}
	return open, func() { _ = pool.Close() }, nil
}

// mountTargets opens sessions as mounts do: each with connections and a cache of its own.
func mountTargets(env *cli.Env) func(context.Context) (bench.Target, error) {
	return func(ctx context.Context) (bench.Target, error) {
		c, err := env.DialHosts(ctx, "", client.Config{MemoryBytes: 128 << 20, CacheEntries: cli.DefaultCache})
		if err != nil {
			return nil, err
		}
		return bench.ClusterTarget(c.Client, c.Close), nil
	}
}

// keptOpen is a Dialer that several clients use: none of them closes it.
type keptOpen struct{ transport.Dialer }

// Close does nothing: other clients still use the connections.
func (keptOpen) Close() error { return nil }

// newBenchWorkerCommand is one process of a benchmark.
func newBenchWorkerCommand(env *cli.Env, o *benchOptions) *cobra.Command {
	var spec string
	cmd := &cobra.Command{
		Use: "worker", Short: "One process of a benchmark", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var w bench.Work
			if err := json.Unmarshal([]byte(spec), &w); err != nil {
				return cli.UsageError("--work: %v", err)
			}
			open, end, err := workerTargets(env, o, w.Op)
			if err != nil {
				return err
			}
			defer end()
			if o.profile != "" {
				f, err := os.Create(fmt.Sprintf("%s.%s.%d", o.profile, w.Op, os.Getpid()))
				if err != nil {
					return err
				}
				defer f.Close()
				if err := pprof.StartCPUProfile(f); err != nil {
					return err
				}
				defer pprof.StopCPUProfile()
			}
			return bench.RunWorker(cmd.Context(), open, w, os.Stdin, os.Stdout)
		},
	}
	cmd.Flags().StringVar(&spec, "work", "", "what to do, as JSON")
	return cmd
}

// newBenchRaftNodeCommand is one node of bare Raft.
func newBenchRaftNodeCommand(env *cli.Env) *cobra.Command {
	var (
		cfg     bareraft.Config
		peers   []string
		seconds float64
	)
	cmd := &cobra.Command{
		Use: "raft-node", Short: "One node of bare Raft, the reference of `bench meta`", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.Duration = time.Duration(seconds * float64(time.Second))
			cfg.Peers = map[string]string{}
			for _, p := range peers {
				id, addr, ok := strings.Cut(p, "=")
				if !ok {
					return cli.UsageError("--peers %q: write ID=HOST:PORT,...", p)
				}
				cfg.Peers[id] = addr
			}
			// The same as in a metadata server, so that the two compare.
			go serve.KeepHeapRoom(cmd.Context(), serve.MetadataHeapRoom)
			return bareraft.Run(cmd.Context(), cfg, func(r bareraft.Result) { _ = cli.PrintJSON(env.Out, r) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.ID, "id", "", "this node")
	f.StringVar(&cfg.Dir, "dir", "", "directory for log and state")
	f.StringSliceVar(&peers, "peers", nil, "all nodes, ID=HOST:PORT,...")
	f.IntVar(&cfg.Clients, "clients", 64, "proposals in flight")
	f.IntVar(&cfg.EntryBytes, "entry-bytes", 128, "size of an entry")
	f.Float64Var(&seconds, "seconds", 5, "how long the leader proposes")
	return cmd
}
