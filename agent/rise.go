package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

// A step that stays in memory by the policy of its run is committed there: the agent then keeps one
// slot of each rank, as for others. Before the node ends, the newest step of each rank goes on to the
// devices: the policy counts on hosts that live.

// pusher brings the parts that want selects to level nvme.
type pusher struct {
	a    *Agent
	want func(*part) bool
}

// push waits until each sealed part is in a committed step, and the newest step of each rank at level
// nvme, or until ctx ends. It returns the parts for which that is not so.
func (p pusher) push(ctx context.Context) []agentproto.Part {
	early, cancel := halfway(ctx)
	p.a.pushed(early, p.want) // a part that is soon committed makes an earlier one needless
	cancel()
	below := p.rise(ctx)
	if left := p.a.pushed(ctx, p.want); len(left) > 0 {
		return append(left, below...)
	}
	return p.rise(ctx) // also what was committed meanwhile
}

// halfway ends after half of the time that ctx has left. Without a deadline it ends with ctx.
func halfway(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(end)/2)
}

// rise brings the newest committed step of each rank to level nvme, and returns the parts whose step is
// not there when ctx ends.
func (p pusher) rise(ctx context.Context) []agentproto.Part {
	a := p.a
	var failed []agentproto.Part
	var waits sync.WaitGroup
	for _, q := range p.newestBelow() {
		waits.Go(func() {
			info, err := a.waitStep(ctx, q, moraine.NVMe)
			a.mu.Lock()
			defer a.mu.Unlock()
			switch {
			case errors.Is(err, moraine.NotFound): // the step was removed
			case err != nil:
				a.log.Warn("step not at level nvme", "run", q.key.path, "step", q.key.step, "rank", q.key.rank, "err", err)
				failed = append(failed, q.describe())
			default:
				q.info = info
				a.figures.committed(q)
			}
		})
	}
	waits.Wait()
	sortParts(failed)
	return failed
}

// newestBelow returns the newest committed part of each rank, if its step may be below level nvme. It may
// have given its slot to another user.
func (p pusher) newestBelow() []*part {
	p.a.mu.Lock()
	defer p.a.mu.Unlock()
	newest := map[string]*part{}
	for _, q := range p.a.parts {
		rank := q.run.key.owner()
		if q.state == agentproto.Committed && p.want(q) && (newest[rank] == nil || q.key.after(newest[rank].key)) {
			newest[rank] = q
		}
	}
	var below []*part
	for _, q := range newest {
		if q.info.Level < moraine.NVMe {
			below = append(below, q)
		}
	}
	return below
}
