package ckptcmd

import (
	"context"
	"fmt"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/cmd/moraine/internal/agentcmd"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
)

// nodePush is what `ckpt push` waits for.
type nodePush struct {
	socket, run string
	level       moraine.Level
	deadline    time.Duration
}

func newCkptPushCommand(env *cli.Env) *cobra.Command {
	var p nodePush
	var level string
	cmd := &cobra.Command{
		Use:   "push",
		Short: "Wait until the parts in this node's memory are in committed steps, before the node ends",
		Long: `Wait until every part that trainers of this node have sealed is in a committed step, and the newest
step of each rank at a level, also one that the policy of the run leaves in memory. Earlier steps stay
where the policy leaves them. Call it where a scheduler announces a preemption: an exit code of 0
means that the newest steps are not lost with the node. Otherwise it lists the parts for which that is
not so, also those that fail meanwhile. With --run it fails if the agent knows no such run.

The agent writes at full speed meanwhile, whatever its --flush-rate.`,
		Example: `  moraine ckpt push --deadline 25s
  moraine ckpt push --run moraine:///runs/llama --level nvme --deadline 25s`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if p.level, err = moraine.ParseLevel(level); err != nil || p.level != moraine.NVMe && p.level != moraine.Object {
				return cli.UsageError("--level %q: write nvme or object", level)
			}
			if p.run != "" {
				l, err := cli.ParseRemote(p.run)
				if err != nil {
					return err
				}
				p.run = l.Path
			}
			return p.push(cmd.Context(), env)
		},
	}
	f := cmd.Flags()
	f.StringVar(&p.socket, "agent", "", "unix socket of the node's agent "+cli.AgentDefault)
	f.StringVar(&p.run, "run", "", "wait for the parts of this run only (default: of all runs)")
	f.StringVar(&level, "level", "nvme", "level that the steps must reach: nvme or object")
	f.DurationVar(&p.deadline, "deadline", time.Minute, "how long to wait: a year at most")
	return cmd
}

func (p nodePush) push(ctx context.Context, env *cli.Env) error {
	if most := agentproto.MaxWaitMillis * time.Millisecond; p.deadline < 0 || p.deadline > most {
		return cli.UsageError("--deadline %v: write a time of 0 or more, %v at most", p.deadline, most)
	}
	p.socket = cli.AgentSocket(p.socket)
	ctx, cancel := context.WithTimeout(ctx, p.deadline+time.Second) // the agent answers at the deadline
	defer cancel()
	follow := partsLeft{ctx: ctx, socket: p.socket, run: p.run}
	stop := env.StartBar("pushed", 0).Follow(follow.look)
	reply, err := agentproto.Ask(ctx, p.socket, &agentproto.Request{Push: &agentproto.Push{Run: p.run, Level: p.level.String(),
		DeadlineMillis: max(p.deadline.Milliseconds(), 1)}})
	stop(err)
	if err != nil {
		return err
	}
	if left := reply.Push.Parts; len(left) > 0 {
		if err := agentcmd.PrintParts(env, left); err != nil {
			return err
		}
		return &moraine.Error{Op: "push", Kind: moraine.Incomplete, Err: fmt.Errorf(
			"%s not safe after %v: failed, in no committed step, or the newest of a rank and its step not at level %v; keep the node and push again, or wait for the ranks that have not sealed. What has failed is not saved: an earlier step is the newest",
			cli.Are(len(left), "part is", "parts are"), p.deadline, p.level)}
	}
	if env.Global.JSON {
		return cli.PrintJSON(env.Out, pushed{Run: p.run, Level: p.level.String(), Safe: true})
	}
	env.Note("every sealed part of this node is in a committed step, and the newest step of each rank at level %s", p.level)
	return nil
}

// pushed is what `ckpt push` prints when all is safe. Otherwise it prints the parts that are not.
type pushed struct {
	Run   string `json:"run,omitempty"`
	Level string `json:"level"`
	Safe  bool   `json:"safe"`
}

// partsLeft follows the parts that the agent has to write. One goroutine uses it.
type partsLeft struct {
	ctx         context.Context
	socket, run string
	most        int64 // bytes that were left at a time, in all parts
}

// look returns how many bytes of the parts are written, of those that were left at the beginning.
func (p *partsLeft) look() (done, total int64, ok bool) {
	reply, err := agentproto.Ask(p.ctx, p.socket, &agentproto.Request{Status: &agentproto.Status{}})
	if err != nil {
		return 0, 0, false
	}
	var left int64
	for _, part := range reply.Status.Parts {
		if part.State == agentproto.Local && (p.run == "" || part.Run == p.run) {
			left += max(part.Bytes-part.Written, 0)
		}
	}
	p.most = max(p.most, left)
	return p.most - left, p.most, true
}
