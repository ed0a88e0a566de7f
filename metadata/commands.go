package metadata

import (
	"context"

	"github.com/morainefs/moraine/metadata/leases"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// commandLog proposes commands, and repeats those that an exclusive lease refused. It implements
// Commands.
type commandLog struct {
	node     string
	proposer *proposer
	leases   *leases.Keeper
	done     <-chan struct{} // closed when the leadership ends
}

// Command proposes a command of the leader itself. It returns a failure from the state machine as
// an error.
func (d *commandLog) Command(ctx context.Context, cmd *statepb.Command) (*wire.MetaResponse, error) {
	res, err := d.applied(ctx, nil, d.own(cmd))
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
	res, err := d.applied(ctx, d.done, cmd)
	if err == nil {
		err = d.leases.ResolveResult(ctx, &res)
	}
	if err == nil && req.LeaseEpoch != 0 {
		res.Response.Lease = leases.OwnChanges(req, &res)
	}
	return res.Response, err
}

// applied proposes a command repeatedly until no exclusive lease refuses it.
func (d *commandLog) applied(ctx context.Context, stopped <-chan struct{}, cmd *statepb.Command) (state.Result, error) {
	for {
		res, err := d.proposer.propose(ctx, stopped, cmd, nil)
		if err != nil || res.Met.Directory == 0 {
			return res, err
		}
		if err := d.leases.WantBack(ctx, res.Met); err != nil {
			return res, err
		}
	}
}
