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
not so, or names the step that has not reached the level.

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
	f.StringVar(&p.socket, "agent", agentproto.DefaultSocket, "unix socket of the node's agent")
	f.StringVar(&p.run, "run", "", "wait for the parts of this run only (default: of all runs)")
	f.StringVar(&level, "level", "nvme", "level that the steps must reach: nvme or object")
	f.DurationVar(&p.deadline, "deadline", time.Minute, "how long to wait: a year at most")
	return cmd
}

func (p nodePush) push(ctx context.Context, env *cli.Env) error {
	if most := agentproto.MaxWaitMillis * time.Millisecond; p.deadline < 0 || p.deadline > most {
		return cli.UsageError("--deadline %v: write a time of 0 or more, %v at most", p.deadline, most)
	}
	ctx, cancel := context.WithTimeout(ctx, p.deadline+time.Second) // the agent answers at the deadline
	defer cancel()
	end := time.Now().Add(p.deadline)
	follow := partsLeft{ctx: ctx, socket: p.socket, run: p.run}
	stop := env.StartBar("pushed", 0).Follow(follow.look)
	reply, err := agentproto.Ask(ctx, p.socket, &agentproto.Request{Push: &agentproto.Push{Run: p.run, DeadlineMillis: max(p.deadline.Milliseconds(), 1)}})
	stop(err)
	if err != nil {
		return err
	}
	if left := reply.Push.Parts; len(left) > 0 {
		if err := agentcmd.PrintParts(env, left); err != nil {
			return err
		}
		return &moraine.Error{Op: "push", Kind: moraine.Incomplete, Err: fmt.Errorf(
			"%s not safe after %v: in no committed step, or the newest of a rank and its step not at level nvme; keep the node and push again, or wait for the ranks that have not sealed",
			cli.Are(len(left), "part is", "parts are"), p.deadline)}
	}
	if p.level == moraine.Object {
		if err := p.toBucket(ctx, end); err != nil {
			return err
		}
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

// toBucket waits until the steps of the committed parts that the node has are in the bucket.
func (p nodePush) toBucket(ctx context.Context, end time.Time) error {
	status, err := agentproto.Ask(ctx, p.socket, &agentproto.Request{Status: &agentproto.Status{}})
	if err != nil {
		return err
	}
	for _, part := range status.Status.Parts {
		if part.State != agentproto.Committed || p.run != "" && part.Run != p.run {
			continue
		}
		_, err := agentproto.Ask(ctx, p.socket, &agentproto.Request{Wait: &agentproto.Wait{Run: part.Run, Rank: part.Rank, Attempt: part.Attempt,
			Step: part.Step, Level: p.level.String(), TimeoutMillis: max(time.Until(end).Milliseconds(), 1)}})
		if err != nil {
			return fmt.Errorf("step %d of %s: %w", part.Step, part.Run, err)
		}
	}
	return nil
}
