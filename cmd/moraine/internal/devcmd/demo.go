package devcmd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/address"
	"github.com/morainefs/moraine/internal/demo"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/spf13/cobra"
)

// NewDemoCommand returns `moraine demo`.
func NewDemoCommand(env *cli.Env) *cobra.Command {
	var dir, venv string
	cmd := &cobra.Command{
		Use:     "demo",
		GroupID: cli.GroupServers,
		Short:   "Show the main job: save, kill servers, restore, on a cluster on this machine",
		Long: `Start a cluster of processes on this machine and show the main job with a model's
checkpoint:

  - save it while training continues
  - save it again while the metadata leader and two chunkservers are killed
  - restore it with another number of ranks
  - see that it is not committed when a rank dies
  - repair it to full protection
  - read it through a mount and through S3
  - flush it to a bucket while the mover is killed, evict it, and restore it from the bucket
  - kill trainers whose parts are at level local: the agent commits their step
  - lose a step that is only in memory, and restore the one before

The demo needs about 20 GiB of disk, 12 GiB of memory, FUSE, and Python 3 with venv, for
which it downloads three packages. Exit code 0 means that every step succeeded.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runDemo(cmd.Context(), env, dir, venv) },
	}
	cmd.Flags().StringVar(&dir, "dir", "", "directory that the demo makes and removes again (default: "+
		"a temporary one)")
	cmd.Flags().StringVar(&venv, "venv", "", "directory of the Python virtual environment; the demo "+
		"makes it if it is missing, and keeps it (default: in --dir)")
	cmd.AddCommand(newDemoRankCommand(env))
	return cmd
}

func runDemo(ctx context.Context, env *cli.Env, dir, venv string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if dir == "" {
		tmp, err := os.MkdirTemp("", "moraine-demo-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(tmp)
		dir = filepath.Join(tmp, "demo")
	}
	shown := &stepProgress{env: env}
	rows, err := demo.Run(ctx, demo.Config{
		Binary: self, Dir: dir, Venv: venv, Mode: env.Global.Mode,
		Connect: func(ctx context.Context, c *devcluster.Cluster) (*client.Client, func(), error) {
			return connectProcs(ctx, env, c)
		},
		Say: func(format string, args ...any) { shown.end(); env.Note(format, args...) }, Progress: shown.at,
	})
	shown.end()
	if len(rows) == 0 && err != nil {
		return fmt.Errorf("the demo could not start: %w", err)
	}
	env.Note("")
	if listErr := cli.List(env, rows, table.Row{"step", "claim", "held", "seen"}, func(r demo.Row) table.Row {
		return table.Row{r.Step, r.Claim, cli.YesNo(r.Held), r.Seen}
	}); listErr != nil {
		return listErr
	}
	if err != nil {
		return fmt.Errorf("the demo could not finish: %w", err)
	}
	for _, r := range rows {
		if !r.Held {
			return fmt.Errorf("some steps of the demo failed: see the lines above")
		}
	}
	return nil
}

// connectProcs opens an admin's session with a cluster of processes.
func connectProcs(ctx context.Context, env *cli.Env, c *devcluster.Cluster) (*client.Client, func(), error) {
	id, err := pki.LoadIdentity(pki.FilesIn(c.Certs(), "admin"))
	if err != nil {
		return nil, nil, err
	}
	sec := cli.Security{Mode: transport.Mode(c.Mode()), Identity: id}
	conn, err := cli.Connect(ctx, sec, client.Config{Metadata: address.SplitEndpoint(c.Endpoint())}, transport.PoolDeps{}, client.Deps{})
	if err != nil {
		return nil, nil, err
	}
	return conn.Client, func() { _ = conn.Close() }, nil
}

// stepProgress shows the progress of one step after the other as bars.
type stepProgress struct {
	env  *cli.Env
	what string
	bar  *cli.Bar
	last float64
}

const progressUnits = 1000

func (p *stepProgress) at(what string, part float64) {
	if what != p.what {
		p.end()
		p.what, p.last, p.bar = what, 0, p.env.StartBar(what, progressUnits)
		p.bar.Plain()
	}
	if part > p.last {
		p.bar.Add(int64(part*progressUnits) - int64(p.last*progressUnits))
		p.last = part
	}
}

func (p *stepProgress) end() {
	p.bar.Finish(nil)
	p.what, p.bar = "", nil
}

// newDemoRankCommand is one trainer of the demo: it reads its commands from standard input.
func newDemoRankCommand(env *cli.Env) *cobra.Command {
	var cfg demo.RankConfig
	cmd := &cobra.Command{
		Use:    "rank",
		Short:  "One trainer of the demo",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := env.DialHosts(cmd.Context(), "", client.Config{MemoryBytes: 256 << 20, Patience: 2 * time.Minute})
			if err != nil {
				return err
			}
			defer c.Close()
			return demo.RunRank(cmd.Context(), c.Client, cfg, os.Stdin, os.Stdout)
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Run, "run", "", "run in which the rank saves")
	f.StringVar(&cfg.Launch, "launch", "", "launch that the ranks share")
	f.Uint32Var(&cfg.Rank, "rank", 0, "this rank")
	f.Uint32Var(&cfg.World, "world", 1, "number of ranks")
	f.BoolVar(&cfg.ReadOnly, "read-only", false, "restore only")
	f.StringVar(&cfg.Agent, "agent", "", "socket of the agent that keeps the saves")
	f.Int64Var(&cfg.Bytes, "bytes", 0, "bound of the model; 0: that of the demo")
	return cmd
}
