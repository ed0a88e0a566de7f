package agent

import (
	"context"
	"errors"
	"os"
	"unicode/utf8"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

// What a connection does with the run and the parts of its rank.

func (c *conn) open(ctx context.Context, req *agentproto.Open) (*agentproto.OpenReply, error) {
	if c.run != nil {
		return nil, c.invalid("this connection has opened %s already", c.run.open.Run)
	}
	r, err := c.a.acquire(ctx, runKey{c.uid, req.Run, req.Launch, req.Rank, req.World, req.ReadOnly}, *req)
	if err != nil {
		return nil, err
	}
	c.run = r
	if req.Bytes > 0 && !req.ReadOnly {
		c.a.prefault(want{op: "agent.Open", uid: c.uid, owner: r.key.owner(), bytes: req.Bytes})
	}
	return &agentproto.OpenReply{RunID: uint64(r.run.ID()), Attempt: r.run.Attempt()}, nil
}

func (c *conn) begin(ctx context.Context, req *agentproto.Begin) (*agentproto.BeginReply, *os.File, error) {
	switch {
	case c.run == nil:
		return nil, nil, c.invalid("begin before open")
	case c.filling != nil:
		return nil, nil, c.invalid("step %d has not been sealed yet", c.filling.key.step)
	case req.Bytes <= 0:
		return nil, nil, c.invalid("a part of %d bytes: begin needs the bytes that the part will have", req.Bytes)
	}
	c.restore.makeRoom(c.a)
	p, err := c.a.begin(ctx, c.run, req, c.lent())
	if err != nil {
		return nil, nil, err
	}
	c.filling, c.sealTimeoutMillis = p, req.SealTimeoutMillis
	c.a.mu.Lock()
	defer c.a.mu.Unlock()
	failed := c.run.failed
	c.run.failed = nil
	return &agentproto.BeginReply{Slot: p.slot.name, Bytes: int64(len(p.slot.mem)), Failed: failed}, p.slot.file, nil
}

// lent counts the bytes of the slots that the connection has for reads, and for a file that it writes.
func (c *conn) lent() (n int64) {
	for _, s := range []*slot{c.restore.slot, c.files.slot, c.files.out} {
		if s != nil {
			n += int64(len(s.mem))
		}
	}
	return n
}

// unsealed returns the connection's part that is being filled.
func (c *conn) unsealed(step uint64) (*part, error) {
	if c.filling == nil || c.filling.key.step != step {
		return nil, c.invalid("step %d is not between begin and seal on this connection", step)
	}
	return c.filling, nil
}

func (c *conn) seal(ctx context.Context, req *agentproto.Seal) (*agentproto.SealReply, error) {
	p, err := c.unsealed(req.Step)
	if err != nil {
		return nil, err
	}
	if err := c.a.seal(ctx, p, req, c.sealTimeoutMillis); err != nil {
		return nil, err
	}
	c.filling = nil
	return &agentproto.SealReply{}, nil
}

func (c *conn) abort(req *agentproto.Abort) (*agentproto.AbortReply, error) {
	p, err := c.unsealed(req.Step)
	if err != nil {
		return nil, err
	}
	c.filling = nil
	c.a.abandon(p, errors.New(clip(req.Reason, maxReason)))
	return &agentproto.AbortReply{}, nil
}

// maxReason bounds the reason of an abort, and maxPartError the error of a part in replies, in bytes: the agent keeps
// them for a thousand parts, and lists all in one frame.
const (
	maxReason    = 300
	maxPartError = 1000
)

// clip returns s, or as much of its begin as n bytes have.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	const mark = "..."
	n -= len(mark)
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + mark
}

func (c *conn) push(ctx context.Context, req *agentproto.Push) (*agentproto.PushReply, error) {
	level := moraine.NVMe
	if req.Level != "" {
		var err error
		if level, err = moraine.ParseLevel(req.Level); err != nil || level < moraine.NVMe {
			return nil, c.invalid("a push to level %q: nvme or object", req.Level)
		}
	}
	p := newPusher(c.a, level, func(p *part) bool { return c.mine(p) && (req.Run == "" || p.key.path == req.Run) })
	if req.Run != "" && !p.knows(c.uid, req.Run) {
		return nil, &moraine.Error{Op: "agent.Push", Ref: req.Run, Kind: moraine.NotFound,
			Err: errors.New("no trainer of this user has saved to the run here, or has it open: moraine agent status lists the runs")}
	}
	ctx, cancel := bounded(ctx, req.DeadlineMillis)
	defer cancel()
	defer c.a.pace.lift()()
	return &agentproto.PushReply{Parts: p.push(ctx)}, nil
}

func (c *conn) status() *agentproto.StatusReply {
	c.a.mu.Lock()
	defer c.a.mu.Unlock()
	follower{c.a}.expose()
	return &agentproto.StatusReply{Memory: c.a.cfg.Memory, Used: c.a.pool.inUse(), Parts: c.a.list(c.mine), Runs: c.a.figures.list(c.uid)}
}

// mine reports whether the connection's user may see a part: its own, and root all.
func (c *conn) mine(p *part) bool { return c.uid == 0 || p.key.uid == c.uid }
