// Package agentcmd has the commands of a training node's agent.
//
// One path through it: `moraine agent` -> runAgent claims the arenas and the socket, and runs
// package agent beside the admin port. `moraine agent status` (status.go) speaks to it over the
// socket.
package agentcmd

import (
	"context"
	"math"
	"os"
	"time"

	"github.com/morainefs/moraine/agent"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/serve"
	"github.com/morainefs/moraine/internal/address"
	"github.com/morainefs/moraine/transport"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

const (
	// memoryShare is the part of the node's memory that the arenas may take, unless a flag says.
	memoryShare = 4
	// clientMemory is the memory of one run's session, for data that it writes: the parts
	// themselves are in the arenas.
	clientMemory = 512 << 20
)

// options are the flags of `moraine agent`.
type options struct {
	agent       agent.Config
	memory      cli.SizeFlag
	flushRate   cli.SizeFlag
	users       []uint
	adminListen string
}

// NewAgentCommand returns `moraine agent`, with `moraine agent status` below it.
func NewAgentCommand(env *cli.Env) *cobra.Command {
	o := options{}
	cmd := &cobra.Command{
		Use:     "agent",
		GroupID: cli.GroupServers,
		Short:   "Run the agent of a training node: it keeps the checkpoints of its trainers",
		Long: `Run the agent of this node, beside its trainers. A trainer copies its part of a checkpoint
into the agent's memory (RunOptions.Agent in Go, "ckpt save --agent" here), and trains on. The
agent writes the part to the cluster, also if the trainer dies meanwhile. If the agent itself
is killed, the next one finds the parts in --arena-dir and goes on with them.

--arena-memory is the limit of the whole node. It needs room for three parts of each rank: the
last good one, the one that is being written, and the next.

SIGTERM (a preemption) writes what is sealed to the cluster, for --grace at most. The exit code
is 0 if every part is then in a committed step. The trainers' users act with the agent's
certificate: root and the agent's own user may connect, and those of --allow-user.`,
		Example: `  moraine agent --endpoint host1,host2,host3 --certs ./node7 --arena-memory 64GiB
  moraine agent status`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runAgent(cmd.Context(), env, o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.agent.Dir, "arena-dir", "", "directory of the arenas, on a tmpfs or where one can be mounted (default: /run/moraine/arenas if the agent may mount, else /dev/shm/moraine)")
	f.BoolVar(&o.agent.OnDisk, "arena-on-disk", false, "let --arena-dir be on a disk: saves then wait for it, and a restart of the node loses the parts")
	f.IntVar(&o.agent.Prefault, "prefault", 2, "slots of each rank that are made as soon as the size of its parts is known; 0: when a save needs one")
	f.Var(&o.memory, "arena-memory", "limit of the memory of all trainers of the node (default: a quarter of its memory)")
	f.Var(&o.flushRate, "flush-rate", "bound of the bytes a second at which parts are written to the cluster, so that training is not slowed; a push or SIGTERM lifts it (default: none)")
	f.UintSliceVar(&o.users, "allow-user", nil, "number of a user who may connect, besides root and the agent's own; may be repeated")
	f.DurationVar(&o.agent.Grace, "grace", 25*time.Second, "how long to write sealed parts to the cluster after SIGTERM")
	f.StringVar(&o.adminListen, "admin-listen", "", "address of /metrics, /healthz and /debug/pprof (default: none)")
	cmd.PersistentFlags().StringVar(&o.agent.Socket, "socket", "", "unix socket of the agent "+cli.AgentDefault)
	cmd.AddCommand(newStatusCommand(env, &o.agent.Socket))
	return cmd
}

func runAgent(ctx context.Context, env *cli.Env, o options) error {
	o.agent.Socket = cli.AgentSocket(o.agent.Socket)
	if o.agent.Memory = int64(o.memory); o.agent.Memory == 0 {
		var info unix.Sysinfo_t
		if err := unix.Sysinfo(&info); err != nil {
			return err
		}
		o.agent.Memory = int64(info.Totalram) * int64(info.Unit) / memoryShare
	}
	o.agent.FlushRate = int64(o.flushRate)
	for _, u := range o.users {
		if u > math.MaxUint32 {
			return cli.UsageError("--allow-user %d: no user has this number", u)
		}
		o.agent.Users = append(o.agent.Users, uint32(u))
	}
	log, err := env.Log()
	if err != nil {
		return err
	}
	sec, err := env.Security()
	if err != nil {
		return err
	}
	cfg := client.Config{Metadata: address.SplitEndpoint(env.Global.Endpoint), MemoryBytes: clientMemory, CacheEntries: -1}
	if len(cfg.Metadata) == 0 {
		return cli.UsageError("no cluster is named: name its metadata servers with --endpoint (MORAINE_ENDPOINT)")
	}
	reg := serve.NewRegistry()
	poolDeps := transport.PoolDeps{Log: log, Metrics: transport.NewMetrics(reg)}
	deps := client.Deps{Log: log, Metrics: client.NewMetrics(reg)}
	a, err := agent.New(o.agent, agent.Deps{Log: log, Metrics: agent.NewMetrics(reg), Saves: ckpt.NewMetrics(reg),
		Connect: func(ctx context.Context) (*client.Client, func() error, error) {
			// A session needs a pool of its own: its connections carry the session's token.
			c, err := cli.Connect(ctx, sec, cfg, poolDeps, deps)
			if err != nil {
				return nil, nil, err
			}
			return c.Client, c.Close, nil
		}})
	if err != nil {
		return err
	}
	parts := []func(context.Context) error{a.Run, serve.WatchCertificate(sec, log)}
	if o.adminListen != "" {
		adm, err := serve.ListenAdmin(o.adminListen, reg, func() error { return nil })
		if err != nil {
			return err
		}
		parts = append(parts, adm.Run)
	}
	log.Info("serving", "socket", o.agent.Socket, "arenas", a.Dir(), "memory", o.agent.Memory, "pid", os.Getpid())
	return serve.RunAll(ctx, parts...)
}
