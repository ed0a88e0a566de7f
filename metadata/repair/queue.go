package repair

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/fleet"
	"github.com/morainefs/moraine/metadata/lead"
	statefleet "github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// repairLook is the number of queued stripes that one pass inspects.
	repairLook = 256
	// repairIdle is how many times as long as a fruitless pass the scheduler rests
	// after it. So a long queue of unrepairable stripes does not keep the leader
	// busy. maxRepairRest bounds the rest.
	repairIdle, maxRepairRest = 20, 2 * time.Second
	// lostShare limits lost stripes to 1 in lostShare of the stripes that jobs may
	// have at a time. Other stripes go first. Their repair mostly fails, and
	// slowly if hosts hang.
	lostShare = 4
)

// Queue assigns stripes that wait for repair to jobs, and publishes what movers have rebuilt.
type Queue struct {
	*lead.Term
	cfg        Config
	fleet      *fleet.Fleet
	leader     Leader
	rebalancer *Rebalancer
	changed    lead.Poke // the queue, or the possible repairs, changed
	healing    healing
	waits      repairWaits
}

// scheduleRepairs assigns queued stripes to repair jobs, least redundancy first, until ctx ends.
// Only stripes that can be improved now become jobs. The rest stays queued, and is inspected again
// each second and when a host comes or goes.
func (q *Queue) scheduleRepairs(ctx context.Context) {
	var at statefleet.RepairCursor
	for {
		began := q.Clock.Now()
		look, err := q.giveRepairs(ctx, at)
		if err != nil && ctx.Err() == nil {
			q.Log.Warn("repairs could not be scheduled", "err", err)
		}
		at = look.next
		rest := min(repairIdle*q.Clock.Since(began), maxRepairRest)
		if look.given > 0 {
			rest = time.Duration(look.given) * time.Second / time.Duration(q.cfg.RepairsPerSecond)
		}
		more := q.Pause(ctx, nil, rest)
		if more && look.given == 0 && !look.more {
			more = q.Pause(ctx, q.changed, lead.JobPoll)
		}
		if !more {
			return
		}
	}
}

// look is the result of one pass over part of the repair queue.
type look struct {
	given int // stripes assigned to jobs
	// next is where to continue; more says that the end was not reached.
	next statefleet.RepairCursor
	more bool
}

// giveRepairs inspects part of the queue from a place on, and creates jobs for what can be repaired
// now.
func (q *Queue) giveRepairs(ctx context.Context, at statefleet.RepairCursor) (look, error) {
	var waiting []*wire.RepairTask
	var queued, running uint64
	var out look
	back := q.fleet.Topology.CameBack()
	err := q.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
		queued, running, err = q.repairCounts(r)
		if err == nil {
			q.healing.note(q.Clock.Now(), queued)
		}
		if err != nil || queued == running {
			return err
		}
		if waits, err := q.repairsWait(r); err != nil || waits {
			return err
		}
		waiting, out.next, err = statefleet.RepairQueue(q.Machine.View(r), at, repairLook, back)
		out.more = !out.next.End()
		return err
	})
	if err != nil {
		return look{}, err
	}
	if !out.more {
		out.next = statefleet.RepairCursor{}
	}
	q.Metrics.RepairQueue.Set(float64(queued))
	q.Metrics.RepairRunning.Set(float64(running))
	v := q.fleet.Topology.View()
	tasks, last := q.chooseRepairs(v, waiting, int(running))
	if len(tasks)+len(last) == 0 {
		return out, nil
	}
	// The queue has changed: the next pass starts at the front.
	out = look{given: len(tasks) + len(last)}
	if err := q.createRepairs(ctx, tasks, v.Live); err != nil {
		return out, err
	}
	return out, q.createRepairs(ctx, last, 1)
}

// chooseRepairs plans as many of the waiting stripes as jobs have room for. Lost stripes are only
// tried, and get jobs of their own, so that no other stripe waits because one of them failed.
func (q *Queue) chooseRepairs(v *fleet.View, waiting []*wire.RepairTask, running int) (tasks, last []*wire.RepairTask) {
	most := q.cfg.MaxRepairs * statefleet.MaxRepairStripes
	room := min(most-running, q.cfg.RepairsPerSecond)
	for _, w := range waiting {
		given := len(tasks) + len(last)
		if given >= room {
			break
		}
		s := &moraine.Stripe{}
		if err := wire.StripeFromWire(s, w.Stripe); err != nil {
			q.Log.Error("stripe record unreadable", "stripe", moraine.StripeID(w.GetStripe().GetId()), "err", err)
			continue
		}
		lost := planner{v}.tooFew(s, w.Missing)
		if lost && running+given >= most/lostShare {
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

// repairCounts returns the number of stripes on the queue, and of those with a job.
func (q *Queue) repairCounts(r kvtx.Reader) (queued, running uint64, err error) {
	n, err := kvtx.ReadCounters(q.Machine.View(r))
	if err != nil {
		return 0, 0, err
	}
	running, err = statefleet.RepairRunning(q.Machine.View(r))
	return n.RepairQueued, running, err
}

// createRepairs creates repair jobs for tasks, small enough that every host gets one.
func (q *Queue) createRepairs(ctx context.Context, tasks []*wire.RepairTask, hosts int) error {
	hosts = max(hosts, 1)
	size := min((len(tasks)+hosts-1)/hosts, statefleet.MaxRepairStripes)
	for len(tasks) > 0 {
		n := min(size, len(tasks))
		job := &wire.Job{Kind: wire.JobKind_JOB_KIND_REPAIR, Repairs: tasks[:n], Subject: fmt.Sprintf("%d stripes: %s", n, tasks[0].Reason)}
		if _, err := q.Command(ctx, &statepb.Command{Op: &statepb.Command_CreateJobs{
			CreateJobs: &statepb.CreateJobs{Jobs: []*wire.Job{job}}}}); err != nil {
			return err
		}
		q.Metrics.RepairTasks.Add(float64(n))
		tasks = tasks[n:]
	}
	return nil
}

// BeginRepair records the intents of a job's holder, and chooses devices for those without one.
func (q *Queue) BeginRepair(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	asked := c.Req.GetBeginRepair()
	open := false
	for _, in := range asked.Intents {
		open = open || in.Device == 0
	}
	if !open {
		return q.recordIntents(ctx, c, c.Req)
	}
	if err := q.Store.ReadBarrier(ctx); err != nil {
		return nil, err
	}
	req := proto.CloneOf(c.Req)
	for _, in := range req.GetBeginRepair().Intents {
		if in.Device != 0 {
			continue
		}
		if err := q.chooseTarget(in); err != nil {
			return nil, err
		}
	}
	return q.recordIntents(ctx, c, req)
}

// recordIntents proposes intents, and permits the holder to fill them.
func (q *Queue) recordIntents(ctx context.Context, c *lead.Call, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	resp, err := q.Propose(ctx, c.Caller, req)
	if reply := resp.GetBeginRepair(); err == nil && reply != nil {
		reply.Capability, err = q.leader.PermitRepairs(c, reply.Intents)
	}
	return resp, err
}

// chooseTarget chooses the device of an intent. It does not choose one that the holder had before
// and could not fill.
func (q *Queue) chooseTarget(in *wire.Intent) error {
	chunk := moraine.ChunkID{Stripe: moraine.StripeID(in.Stripe), Index: uint8(in.Index)}
	var s *moraine.Stripe
	var had *wire.Intent
	err := q.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
		if s, err = statefleet.StripeByID(q.Machine.View(r), chunk.Stripe); err != nil {
			return err
		}
		had, err = statefleet.Intent(q.Machine.View(r), chunk)
		return err
	})
	if err != nil {
		return err
	}
	if s == nil || in.Index >= uint32(len(s.Chunks)) {
		return &moraine.Error{Ref: chunk.Stripe.String(), Kind: moraine.Stale, Err: fmt.Errorf("the stripe is dead or has no chunk %d", in.Index)}
	}
	var avoid []moraine.DeviceID
	if had != nil {
		avoid = append(avoid, moraine.DeviceID(had.Device))
	}
	for _, plan := range planRepair(q.fleet.Topology.View(), s, 1<<in.Index, avoid...) {
		if plan.Index == in.Index {
			in.Device = plan.Device
			return nil
		}
	}
	return &moraine.Error{Ref: chunk.String(), Kind: moraine.Unavailable, Err: fmt.Errorf("no other device can take the chunk now")}
}

// repairsWait reports whether repairs wait for device reports, because most chunks that a restored
// state misses are on other devices. They wait at most as long as for a silent host.
func (q *Queue) repairsWait(r kvtx.Reader) (bool, error) {
	if q.Clock.Since(q.Began) > q.cfg.RepairGrace {
		return false, nil
	}
	return q.fleet.ReportsAwaited(r)
}
