package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

// list describes the parts that want selects, by run, step and rank, but not the good ones that a
// newer one has replaced. The caller holds the mutex.
func (a *Agent) list(want func(*part) bool) (out []agentproto.Part) {
	for _, p := range a.parts {
		if !want(p) || p.state == agentproto.Committed && p.slot == nil {
			continue
		}
		out = append(out, p.describe())
	}
	sortParts(out)
	return out
}

// describe describes the part. The caller holds the mutex.
func (p *part) describe() agentproto.Part {
	d := agentproto.Part{Run: p.key.path, Attempt: p.key.attempt, Step: p.key.step, Rank: p.key.rank, World: p.run.key.world,
		Bytes: p.bytes, State: p.state}
	d.Written, _ = p.progress()
	if p.err != nil {
		d.Error = clip(p.err.Error(), maxPartError)
	}
	return d
}

// sortParts sorts parts by run, step and rank.
func sortParts(list []agentproto.Part) {
	slices.SortFunc(list, func(x, y agentproto.Part) int {
		return cmp.Or(cmp.Compare(x.Run, y.Run), cmp.Compare(x.Attempt, y.Attempt), cmp.Compare(x.Step, y.Step), cmp.Compare(x.Rank, y.Rank))
	})
}

// read returns a sealed part, and its slot opened for reading. Nobody writes to the slot until the
// connection has ended, also if the part has given it back by then.
func (c *conn) read(req *agentproto.Read) (*agentproto.ReadReply, *os.File, error) {
	a := c.a
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.parts[partKey{c.uid, req.Run, req.Rank, req.Attempt, req.Step}]
	if p == nil || p.slot == nil || p.manifest == nil {
		return nil, nil, &moraine.Error{Op: "agent.Read", Ref: fmt.Sprintf("%s step %d rank %d", req.Run, req.Step, req.Rank),
			Kind: moraine.NotFound, Err: errors.New("the node does not have this part in memory")}
	}
	f, err := os.Open(p.slot.file.Name())
	if err != nil {
		return nil, nil, err
	}
	p.slot.readers++
	c.reads = append(c.reads, p.slot)
	return &agentproto.ReadReply{Bytes: int64(len(p.slot.mem)), Seal: p.manifest.Seal}, f, nil
}

// unread ends the reading of slots: nobody has them mapped for it any more.
func (a *Agent) unread(slots []*slot) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range slots {
		s.readers--
	}
}

// progress returns how much of a part is written. See agentproto.Progress.
func (a *Agent) progress(ctx context.Context, uid uint32, req *agentproto.Progress) (*agentproto.ProgressReply, error) {
	key := partKey{uid, req.Run, req.Rank, req.Attempt, req.Step}
	a.mu.Lock()
	p := a.parts[key]
	if p == nil {
		a.mu.Unlock()
		return forgotten{a, key}.progress(ctx)
	}
	defer a.mu.Unlock()
	reply := &agentproto.ProgressReply{State: p.state}
	reply.Written, reply.Bytes = p.progress()
	return reply, nil
}

// progress returns how many bytes of the part's files the cluster has been given, and how many there
// are. The caller holds the mutex.
func (p *part) progress() (written, total int64) {
	switch {
	case p.save == nil && p.state == agentproto.Committed && p.total == 0: // an agent before this one has written it
		return p.bytes, p.bytes
	case p.save == nil:
		return p.reached, p.total
	}
	written, total, _ = p.save.Progress(context.Background()) // it does not ask another agent
	return written, total
}

// wait waits until a part has reached a level. See agentproto.Wait.
func (a *Agent) wait(ctx context.Context, uid uint32, req *agentproto.Wait) (*agentproto.WaitReply, error) {
	key := partKey{uid, req.Run, req.Rank, req.Attempt, req.Step}
	level, err := moraine.ParseLevel(req.Level)
	if req.Level != agentproto.Local && req.Level != agentproto.Written && (level < moraine.Memory || level > moraine.Object) {
		return nil, &moraine.Error{Op: "agent.Wait", Kind: moraine.Unimplemented,
			Err: errors.Join(err, fmt.Errorf("level %q: wait for local, part, memory, nvme or object", req.Level))}
	}
	a.mu.Lock()
	p := a.parts[key]
	a.mu.Unlock()
	if p == nil {
		return forgotten{a, key}.wait(ctx, req.Level, level)
	}
	var until chan struct{}
	switch {
	case req.Level == agentproto.Local:
	case req.Level == agentproto.Written, level == moraine.Memory:
		until = p.written
	default:
		until = p.ended
	}
	if until != nil {
		select {
		case <-until:
		case <-ctx.Done():
			return nil, &moraine.Error{Op: "agent.Wait", Ref: p.ref(), Kind: moraine.Timeout, Err: ctx.Err()}
		}
	}
	a.mu.Lock()
	state, failure, info := p.state, p.err, p.info
	a.mu.Unlock()
	switch {
	case state == agentproto.Failed:
		return nil, failure
	case state == agentproto.Filling:
		return nil, &moraine.Error{Op: "agent.Wait", Ref: p.ref(), Kind: moraine.InvalidArgument, Err: errors.New("the part is not sealed yet")}
	case req.Level != agentproto.Local && req.Level != agentproto.Written && info.Level < level:
		if info, err = a.waitStep(ctx, p, level); err != nil {
			return nil, err
		}
	case state != agentproto.Committed:
		return &agentproto.WaitReply{Level: agentproto.Local}, nil
	}
	return &agentproto.WaitReply{Level: info.Level.String(), Path: info.Path, Bytes: info.Bytes}, nil
}

// waitStep waits until the step of a part that is in the cluster has a level. The run of the part may
// be closed by now, so it asks with the agent's own client.
func (a *Agent) waitStep(ctx context.Context, p *part, level moraine.Level) (ckpt.StepInfo, error) {
	c, err := a.source.client(ctx, a.deps.Connect)
	if err != nil {
		return ckpt.StepInfo{}, err
	}
	a.mu.Lock()
	run := p.info.Run // an agent that was started again knows a committed part by its manifest
	a.mu.Unlock()
	if run == 0 {
		run = p.run.run.ID()
	}
	return ckpt.AwaitStep(ctx, c, client.StepKey{Run: run, Attempt: p.key.attempt, Step: p.key.step}, level)
}
