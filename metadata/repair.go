package metadata

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/fleet"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// repairLook is how many stripes of the queue one look goes over.
	repairLook = 256
	// repairIdle is how many times as long as a look in vain the scheduler
	// rests after it: a long queue of stripes that nothing can be done for must
	// not keep the leader busy. maxRepairRest bounds that.
	repairIdle, maxRepairRest = 20, 2 * time.Second
	// lostShare is of how large a part of what jobs may have at a time stripes may be that
	// have too few chunks left, and only where no others need the room: they fail mostly, and
	// late where hosts hang.
	lostShare = 4
)

// scheduleRepairs gives queued stripes to repair jobs, those with the least
// redundancy first, until ctx ends. Only what can be made better now becomes a
// job; the rest stays queued, and is looked at again each second, and when a
// host comes or goes.
func (l *leader) scheduleRepairs(ctx context.Context) {
	var at state.RepairCursor
	for {
		began := l.Clock.Now()
		look, err := l.giveRepairs(ctx, at)
		if err != nil && ctx.Err() == nil {
			l.Log.Warn("repairs could not be scheduled", "err", err)
		}
		at = look.next
		rest := min(repairIdle*l.Clock.Since(began), maxRepairRest)
		if look.given > 0 {
			rest = time.Duration(look.given) * time.Second / time.Duration(l.cfg.RepairsPerSecond)
		}
		more := l.Pause(ctx, nil, rest)
		if more && look.given == 0 && !look.more {
			more = l.Pause(ctx, l.repairs, jobPoll)
		}
		if !more {
			return
		}
	}
}

// look is what one look at the repair queue came to.
type look struct {
	given int // stripes given to jobs
	// next is where to go on; more is whether this pass has not reached the end.
	next state.RepairCursor
	more bool
}

// giveRepairs looks at part of the queue, from a place on, and makes jobs of
// what can be repaired now.
func (l *leader) giveRepairs(ctx context.Context, at state.RepairCursor) (look, error) {
	var waiting []*wire.RepairTask
	var queued, running uint64
	var out look
	back := l.fleet.Topology.CameBack()
	err := l.Store.View(func(r state.Reader, _ uint64) (err error) {
		queued, running, err = l.repairCounts(r)
		if err == nil {
			l.healing.note(l.Clock.Now(), queued)
		}
		if err != nil || queued == running {
			return err
		}
		if waits, err := l.repairsWait(r); err != nil || waits {
			return err
		}
		waiting, out.next, err = l.Machine.RepairQueue(r, at, repairLook, back)
		out.more = !out.next.End()
		return err
	})
	if err != nil {
		return look{}, err
	}
	if !out.more {
		out.next = state.RepairCursor{}
	}
	l.Metrics.RepairQueue.Set(float64(queued))
	l.Metrics.RepairRunning.Set(float64(running))
	v := l.fleet.Topology.View()
	tasks, last := l.chooseRepairs(v, waiting, int(running), l.Speaks(ctx, state.LevelUnrecoverable) == nil)
	if len(tasks)+len(last) == 0 {
		return out, nil
	}
	// The queue has changed: the next look is from the front.
	out = look{given: len(tasks) + len(last)}
	if err := l.createRepairs(ctx, tasks, v.Live); err != nil {
		return out, err
	}
	return out, l.createRepairs(ctx, last, 1)
}

// chooseRepairs plans as many of the stripes that wait as jobs have room for. Those that
// have too few chunks left, and are only tried, are apart: they have jobs of their own, so
// that no other stripe waits because one of them failed. Without try there are none of them:
// movers of earlier builds do not try.
func (l *leader) chooseRepairs(v *fleet.View, waiting []*wire.RepairTask, running int, try bool) (tasks, last []*wire.RepairTask) {
	most := l.cfg.MaxRepairs * state.MaxRepairStripes
	room := min(most-running, l.cfg.RepairsPerSecond)
	for _, w := range waiting {
		given := len(tasks) + len(last)
		if given >= room {
			break
		}
		s := stripeFromWire(w.Stripe)
		lost := planner{v}.tooFew(s, w.Missing)
		if lost && (!try || running+given >= most/lostShare) {
			continue
		}
		in := planRepair(v, s, w.Missing)
		if len(in) == 0 {
			continue
		}
		task := &wire.RepairTask{Stripe: &wire.Stripe{Id: w.Stripe.Id}, Reason: w.Reason, Intents: in}
		if lost {
			last = append(last, task)
		} else {
			tasks = append(tasks, task)
		}
	}
	return tasks, last
}

// repairCounts returns how many stripes are on the queue, and how many of those
// jobs work on.
func (l *leader) repairCounts(r state.Reader) (queued, running uint64, err error) {
	n, err := l.Machine.Counters(r)
	if err != nil {
		return 0, 0, err
	}
	running, err = l.Machine.RepairRunning(r)
	return n.RepairQueued, running, err
}

// createRepairs makes repair jobs of tasks, small enough for every host to get
// one.
func (l *leader) createRepairs(ctx context.Context, tasks []*wire.RepairTask, hosts int) error {
	hosts = max(hosts, 1)
	size := min((len(tasks)+hosts-1)/hosts, state.MaxRepairStripes)
	for len(tasks) > 0 {
		n := min(size, len(tasks))
		job := &wire.Job{Kind: wire.JobKind_JOB_KIND_REPAIR, Repairs: tasks[:n], Subject: fmt.Sprintf("%d stripes: %s", n, tasks[0].Reason)}
		if _, err := l.Command(ctx, &statepb.Command{Op: &statepb.Command_CreateJobs{
			CreateJobs: &statepb.CreateJobs{Jobs: []*wire.Job{job}}}}); err != nil {
			return err
		}
		l.Metrics.RepairTasks.Add(float64(n))
		tasks = tasks[n:]
	}
	return nil
}

// beginRepair records the intents of a job's holder, and chooses the devices
// that it leaves open.
func (l *leader) beginRepair(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	asked := c.Req.GetBeginRepair()
	open := false
	for _, in := range asked.Intents {
		open = open || in.Device == 0
	}
	if !open {
		return l.recordIntents(ctx, c, c.Req)
	}
	if err := l.Store.ReadBarrier(ctx); err != nil {
		return nil, err
	}
	req := proto.CloneOf(c.Req)
	for _, in := range req.GetBeginRepair().Intents {
		if in.Device != 0 {
			continue
		}
		if err := l.chooseTarget(in); err != nil {
			return nil, err
		}
	}
	return l.recordIntents(ctx, c, req)
}

// recordIntents proposes intents, and permits their holder to fill them.
func (l *leader) recordIntents(ctx context.Context, c *lead.Call, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	resp, err := l.Propose(ctx, c.Caller, req)
	if reply := resp.GetBeginRepair(); err == nil && reply != nil {
		reply.Capability, err = l.permitRepairs(c, reply.Intents)
	}
	return resp, err
}

// chooseTarget fills in the device of an intent. A device that the holder had
// before and could not fill is not chosen again.
func (l *leader) chooseTarget(in *wire.Intent) error {
	chunk := moraine.ChunkID{Stripe: moraine.StripeID(in.Stripe), Index: uint8(in.Index)}
	var s *moraine.Stripe
	var had *wire.Intent
	err := l.Store.View(func(r state.Reader, _ uint64) (err error) {
		if s, err = l.Machine.StripeByID(r, chunk.Stripe); err != nil {
			return err
		}
		had, err = l.Machine.Intent(r, chunk)
		return err
	})
	if err != nil {
		return err
	}
	if s == nil || in.Index >= uint32(len(s.Chunks)) {
		return &moraine.Error{Ref: chunk.Stripe.String(), Kind: moraine.Stale, Err: fmt.Errorf("the stripe is dead, or has no chunk %d", in.Index)}
	}
	var avoid []moraine.DeviceID
	if had != nil {
		avoid = append(avoid, moraine.DeviceID(had.Device))
	}
	for _, plan := range planRepair(l.fleet.Topology.View(), s, 1<<in.Index, avoid...) {
		if plan.Index == in.Index {
			in.Device = plan.Device
			return nil
		}
	}
	return &moraine.Error{Ref: chunk.String(), Kind: moraine.Unavailable, Err: fmt.Errorf("there is no better place for the chunk now")}
}

// stripeFromWire reads what planRepair looks at.
func stripeFromWire(w *wire.Stripe) *moraine.Stripe {
	s := &moraine.Stripe{
		ID: moraine.StripeID(w.Id), Scheme: moraine.Scheme{K: uint8(w.Scheme.GetK()), M: uint8(w.Scheme.GetM())},
		Version: moraine.LayoutVersion(w.Version), Length: int64(w.Length), Chunks: make([]moraine.ChunkState, len(w.Chunks)),
	}
	for i, c := range w.Chunks {
		s.Chunks[i] = moraine.ChunkState{Device: moraine.DeviceID(c.Device), Level: moraine.Level(c.Level), Epoch: moraine.Epoch(c.Epoch)}
	}
	return s
}
