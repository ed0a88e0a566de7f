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

func newCkptPushCommand(env *cli.Env) *cobra.Command {
	var socket string
	var deadline time.Duration
	cmd := &cobra.Command{
		Use:   "push",
		Short: "Wait until the parts in this node's memory are in committed steps, before the node ends",
		Long: `Wait until every part that trainers of this node have sealed is in a committed step. Call it
where a scheduler announces a preemption: an exit code of 0 means that nothing is lost with
the node. Otherwise it lists the parts that are in this node's memory only.`,
		Example: "  moraine ckpt push --deadline 25s",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return ckptPush(cmd.Context(), env, socket, deadline) },
	}
	cmd.Flags().StringVar(&socket, "agent", agentproto.DefaultSocket, "unix socket of the node's agent")
	cmd.Flags().DurationVar(&deadline, "deadline", time.Minute, "how long to wait")
	return cmd
}

func ckptPush(ctx context.Context, env *cli.Env, socket string, deadline time.Duration) error {
	reply, err := agentproto.Ask(ctx, socket, &agentproto.Request{Push: &agentproto.Push{DeadlineMillis: max(deadline.Milliseconds(), 1)}})
	if err != nil {
		return err
	}
	left := reply.Push.Parts
	if len(left) == 0 {
		env.Note("every sealed part of this node is in a committed step")
		return nil
	}
	if err := agentcmd.PrintParts(env, left); err != nil {
		return err
	}
	return &moraine.Error{Op: "push", Kind: moraine.Incomplete, Err: fmt.Errorf(
		"%s in no committed step after %v: keep the node and push again, or wait for the ranks that have not sealed",
		cli.Are(len(left), "part is", "parts are"), deadline)}
}
