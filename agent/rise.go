package agent

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

// A step that stays in memory by the policy of its run is committed there: the agent then keeps one
// slot of each rank, as for others. Before the node ends, the newest step of each rank goes on to the
// devices: the policy counts on hosts that live.

// pusher brings the parts that want selects to a level. It has the parts that were sealed and in no committed step
// at any time since watch: those that fail meanwhile are not safe, though nobody waits for them then.
type pusher struct {
	a       *Agent
	want    func(*part) bool
	level   moraine.Level // nvme, or object
	watched map[*part]bool
}

// newPusher returns a pusher that has watched once.
func newPusher(a *Agent, level moraine.Level, want func(*part) bool) pusher {
	p := pusher{a, want, level, map[*part]bool{}}
	a.mu.Lock()
	defer a.mu.Unlock()
	p.watch()
	return p
}

// knows reports whether the agent has a part that want selects, whatever became of it, or the run open for a user.
func (p pusher) knows(uid uint32, run string) bool {
	p.a.mu.Lock()
	defer p.a.mu.Unlock()
	for _, q := range p.a.parts {
		if p.want(q) {
			return true
		}
	}
	for key := range p.a.runs {
		if key.path == run && (uid == 0 || uid == key.uid) {
			return true
		}
	}
	return false
}

// watch notes the parts that are in no committed step. The caller holds the mutex.
func (p pusher) watch() {
	for _, q := range p.a.parts {
		if unwritten(q) && p.want(q) {
			p.watched[q] = true
		}
	}
}

// push waits until each sealed part is in a committed step, and the newest step of each rank at the
// level, or until ctx ends. It returns the parts for which that is not so.
func (p pusher) push(ctx context.Context) []agentproto.Part {
	early, cancel := halfway(ctx)
	p.a.pushed(early, p.waited) // a part that is soon committed makes an earlier one needless
	cancel()
	below := p.rise(ctx)
	left := p.a.pushed(ctx, p.waited)
	if len(left) == 0 {
		below = p.rise(ctx) // also what was committed meanwhile
	}
	return slices.Concat(left, p.failed(), below)
}

// waited is want of a part that pushed looks at. The caller holds the mutex.
func (p pusher) waited(q *part) bool {
	if !p.want(q) {
		return false
	}
	p.watched[q] = true
	return true
}

// failed returns the parts that have failed since they were watched, unless their rank has a newer part that is
// committed, or may be.
func (p pusher) failed() []agentproto.Part {
	p.a.mu.Lock()
	defer p.a.mu.Unlock()
	newest := map[string]partKey{}
	for _, q := range p.a.parts {
		rank := q.run.key.owner()
		if last, ok := newest[rank]; (q.state == agentproto.Committed || unwritten(q)) && (!ok || q.key.after(last)) {
			newest[rank] = q.key
		}
	}
	var out []agentproto.Part
	for q := range p.watched {
		if last, ok := newest[q.run.key.owner()]; q.state == agentproto.Failed && (!ok || q.key.after(last)) {
			out = append(out, q.describe())
		}
	}
	sortParts(out)
	return out
}

// halfway ends after half of the time that ctx has left. Without a deadline it ends with ctx.
func halfway(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(end)/2)
}

// rise brings the newest committed step of each rank to the level, and returns the parts whose step is
// not there when ctx ends.
func (p pusher) rise(ctx context.Context) []agentproto.Part {
	a := p.a
	var failed []agentproto.Part
	var waits sync.WaitGroup
	for _, q := range p.newestBelow() {
		waits.Go(func() {
			info, err := a.waitStep(ctx, q, p.level)
			a.mu.Lock()
			defer a.mu.Unlock()
			switch {
			case errors.Is(err, moraine.NotFound): // the step was removed
			case err != nil:
				a.log.Warn("step not at its level", "level", p.level, "run", q.key.path, "step", q.key.step, "rank", q.key.rank, "err", err)
				d := q.describe()
				d.Error = clip(err.Error(), maxPartError)
				failed = append(failed, d)
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

// newestBelow returns the newest committed part of each rank, if its step may be below the level. It may
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
		if q.info.Level < p.level {
			below = append(below, q)
		}
	}
	return below
}
