package benchcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/bench"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/netns"
)

// benchIn runs a benchmark in one transport mode, on a cluster of its own unless it gets one.
func benchIn(ctx context.Context, env *cli.Env, o benchOptions, b benchmark, mode, suffix string) ([]bench.Line, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	e := &bench.Env{Dir: o.dir, Bytes: int64(o.bytes), WorkingSet: int64(o.workingSet), Devices: 6, Clients: o.clients, Seconds: o.seconds, Inodes: o.inodes, How: o.how, ContentEvery: o.contentEvery, Large: o.large, State: o.state, Sessions: o.sessions, Leases: o.leases, Suffix: suffix, NoForeground: o.noForeground,
		Mode: mode, MetadataArgs: []string{"--cache", o.cache.String()}, Down: o.down, Rate: o.rate, Repeat: o.repeat, Python: o.python, Rounds: o.rounds, Ranks: o.ranks, Tensors: o.tensors,
		Worker:   []string{self, "bench", "worker", "--mode", mode},
		Progress: func(format string, args ...any) { fmt.Fprintf(env.Err, "bench: "+format+suffix+" ...\n", args...) }}
	if e.Clients == 0 {
		e.Clients = b.clients
	}
	if e.Scheme, err = moraine.ParseScheme(o.scheme); err != nil {
		return nil, cli.UsageError("--scheme: %v", err)
	}
	if b.name == "rebuild" && e.Scheme.M == 0 {
		return nil, cli.UsageError("--scheme %s: a cluster without redundancy can rebuild nothing; name a "+
			"scheme such as 4+2 or x3", o.scheme)
	}
	if e.Dir == "" {
		if e.Dir, err = os.MkdirTemp("", "moraine-bench-"); err != nil {
			return nil, err
		}
		defer os.RemoveAll(e.Dir)
	}
	if o.profile != "" {
		e.Worker = append(e.Worker, "--cpuprofile", o.profile)
	}
	bare := *e
	e.On = func(c *devcluster.Cluster) *bench.Env {
		on := bare
		benchOn(onCluster(env, c, mode), &on, o.profile)
		on.Cluster = c
		return &on
	}
	switch {
	case o.path != "":
		e.Worker = append(e.Worker, "--path", o.path)
		e.Open = func(context.Context) (bench.Target, error) { return bench.PathTarget(o.path), nil }
	case o.s3 != "":
		e.S3 = &bench.S3Server{URL: o.s3}
		e.Open = func(context.Context) (bench.Target, error) { return bench.S3Target(e.S3) }
	case env.Global.Endpoint != "":
		benchOn(env, e, o.profile)
	case b.alone(): // it starts its own servers, or needs none
	default:
		cfg := b.cluster
		cfg.Dir, cfg.Mode, cfg.LogStall = filepath.Join(e.Dir, "cluster"), mode, bench.ShippedLogStall
		if b.inMemory() {
			if e.MemoryBytes, err = bench.MemoryFor(e.Bytes); err != nil {
				return nil, err
			}
			// The servers read it from the same environment, and refuse a value that is not
			// a bool.
			on, err := strconv.ParseBool(os.Getenv("MORAINE_CHUNKSERVER_SHORT_CIRCUIT"))
			e.ShortCircuit = on || err != nil
			bare.MemoryBytes, bare.ShortCircuit = e.MemoryBytes, e.ShortCircuit
			cfg.ChunkserverArgs = append(cfg.ChunkserverArgs, "--memory", fmt.Sprint(e.MemoryBytes), "--dirty-memory", fmt.Sprint(e.MemoryBytes/4*3))
		}
		if b.name == "write" && bench.Rotates(e.Bytes, e.WorkingSet) {
			cfg.MetadataArgs = append(cfg.MetadataArgs, benchRemoval...)
		}
		if b.name == "rebuild" {
			cfg.Chunkservers = bench.RebuildHosts(e.Scheme)
		}
		cfg.OwnHosts = b.name == "failover" && slices.Contains(o.how, "vanish")
		c, err := devcluster.Start(ctx, cfg)
		if errors.Is(err, netns.ErrCannot) {
			err = fmt.Errorf("--how vanish: %w", err)
		}
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(c.Dir())
		defer c.Close() //nolint:errcheck // some were killed on purpose
		e = e.On(c)
		e.RaftNode = []string{self, "bench", "raft-node"}
		if err := benchStores(e, c); err != nil {
			return nil, err
		}
		lines, err := b.run(ctx, e)
		return lines, errors.Join(err, bench.AllRun(c))
	}
	return b.run(ctx, e)
}
