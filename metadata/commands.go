package metadata

import (
	"context"

	"github.com/morainefs/moraine/metadata/leases"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// commandLog proposes commands. It implements Commands.
type commandLog struct {
	node     string
	proposer *proposer
	leases   *leases.Keeper
	done     <-chan struct{} // closed when the leadership ends
}

// Command proposes a command of the leader itself. It returns a failure from the state machine as
// an error.
func (d *commandLog) Command(ctx context.Context, cmd *statepb.Command) (*wire.MetaResponse, error) {
	res, err := d.proposer.propose(ctx, nil, d.own(cmd), nil)
	if err != nil {
		return nil, err
	}
	if e := res.Response.GetError(); e != nil {
		return nil, transport.ErrorFromWire(e)
	}
	return res.Response, nil
}

// own marks a command without a caller as the leader's own.
func (d *commandLog) own(cmd *statepb.Command) *statepb.Command {
	if cmd.Caller == nil {
		cmd.Caller = &statepb.Caller{Node: d.node, Role: "metadata", Scope: "/"}
	}
	return cmd
}

// Propose proposes a caller's request and returns the state machine's answer, with failures in the
// response.
func (d *commandLog) Propose(ctx context.Context, caller *statepb.Caller, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	cmd := &statepb.Command{Caller: caller, Op: &statepb.Command_Request{Request: req}}
	res, err := d.propose(ctx, cmd, nil)
	if err == nil {
		err = d.leases.ResolveResult(ctx, &res)
	}
	if err == nil && req.LeaseEpoch != 0 {
		res.Response.Lease = leases.OwnChanges(req, &res)
	}
	return res.Response, err
}

// propose proposes a caller's command, and again after the delegations that it met. after is as in
// proposer.propose.
func (d *commandLog) propose(ctx context.Context, cmd *statepb.Command, after func(*state.Result)) (state.Result, error) {
	for tries := 0; ; tries++ {
		res, err := d.proposer.propose(ctx, d.done, cmd, after)
		if err != nil || len(res.Met) == 0 {
			return res, err
		}
		if err := d.meeting(ctx, res.Met, tries); err != nil {
			return state.Result{}, err
		}
	}
}
