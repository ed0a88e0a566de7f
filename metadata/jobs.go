package metadata

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/fleet"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/ckpt"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	statesession "github.com/morainefs/moraine/metadata/state/session"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/morainefs/moraine/transport/wire/ops"
)

const (
	// maxLease bounds the jobs that one request leases.
	maxLease = 16
)

// moverJobs are the kinds that movers lease, leaderJobs those that the leader runs.
var (
	moverJobs = []wire.JobKind{wire.JobKind_JOB_KIND_REPAIR, wire.JobKind_JOB_KIND_COMMIT_STEP, wire.JobKind_JOB_KIND_REBALANCE,
		wire.JobKind_JOB_KIND_REWRITE, wire.JobKind_JOB_KIND_READ_TRACKER}
	// tierJobs are leased only by movers that serve a bucket.
	tierJobs = []wire.JobKind{wire.JobKind_JOB_KIND_STAGE, wire.JobKind_JOB_KIND_FLUSH, wire.JobKind_JOB_KIND_EVICT,
		wire.JobKind_JOB_KIND_DELETE_OBJECT}
	leaderJobs = []wire.JobKind{wire.JobKind_JOB_KIND_REMOVE_TREE, wire.JobKind_JOB_KIND_SCAN_DEVICE, wire.JobKind_JOB_KIND_DROP_TABLES,
		wire.JobKind_JOB_KIND_MOVE_TREE, wire.JobKind_JOB_KIND_RECOUNT, wire.JobKind_JOB_KIND_CLONE_TREE, wire.JobKind_JOB_KIND_CONCAT,
		wire.JobKind_JOB_KIND_ADOPT, wire.JobKind_JOB_KIND_EMPTY_TRASH}
)

// lostJobPause is how long the leader delays the answer to a mover that came too late for a job.
const lostJobPause = 50 * time.Millisecond

// jobDesk leases jobs to movers while this server leads.
type jobDesk struct {
	*lead.Term
	fleet   *fleet.Fleet
	permits *permits
	ready   lead.Signal // jobs may be leased

	silentAfter []byte // where the search for silent steps goes on; only ticks use it
}

// leaseJobs leases jobs to the caller's node, and waits for one if there is none.
func (d *jobDesk) leaseJobs(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	host, err := c.Host()
	if err != nil {
		return nil, err
	}
	req := proto.CloneOf(c.Req)
	asked := req.GetLeaseJobs()
	asked.Host, asked.Max = host, min(max(asked.Max, 1), maxLease)
	if asked.Kinds, err = moverKinds(asked.Kinds, asked.Bucket); err != nil {
		return nil, err
	}
	d.fleet.Traits.Note(d.fleet.Topology.View(), host, asked.Traits)
	asked.Traits = nil // the state does not use it
	until := d.WaitUntil(ctx, asked.WaitMillis)
	all := asked.Kinds
	for {
		fired := d.ready.Wait()
		asked.Kinds = d.startable(all)
		ready, err := d.jobsReady(c.Req, asked.Kinds)
		if err != nil {
			return nil, err
		}
		if ready {
			resp, err := d.Propose(ctx, c.Caller, req)
			if err == nil {
				err = d.permits.permitJobs(c, resp.GetJobs())
			}
			n := len(resp.GetJobs().GetJobs())
			d.Metrics.JobsLeased.Add(float64(n))
			if err == nil && resp.GetError() == nil && n == 0 {
				// Another mover was first. This answer stays the one for the request's number, so
				// the mover must send a new request. Delay the answer, because the mover sends the
				// next one at once.
				err = d.Await(ctx, fired, min(max(0, until.Sub(d.Clock.Now())), lostJobPause))
			}
			return resp, err
		}
		left := until.Sub(d.Clock.Now())
		if left <= 0 {
			return d.noJobs(), nil
		}
		if err := d.Await(ctx, fired, min(left, lead.JobPoll)); err != nil {
			return nil, err
		}
	}
}

// startable returns the kinds of which a job may begin now. While a host is away, no rewrite
// begins.
func (d *jobDesk) startable(kinds []wire.JobKind) []wire.JobKind {
	if !slices.Contains(kinds, wire.JobKind_JOB_KIND_REWRITE) || d.fleet.Topology.Calm() {
		return kinds
	}
	return slices.DeleteFunc(slices.Clone(kinds), func(k wire.JobKind) bool { return k == wire.JobKind_JOB_KIND_REWRITE })
}

// moverKinds returns the kinds that a mover requests, without those that need a bucket if it serves
// none.
func moverKinds(kinds []wire.JobKind, bucket string) ([]wire.JobKind, error) {
	if len(kinds) == 0 {
		kinds = slices.Concat(moverJobs, tierJobs)
	}
	var out []wire.JobKind
	for _, k := range kinds {
		switch {
		case slices.Contains(moverJobs, k), slices.Contains(tierJobs, k) && bucket != "":
			out = append(out, k)
		case !slices.Contains(tierJobs, k):
			return nil, &moraine.Error{Ref: k.String(), Kind: moraine.InvalidArgument, Err: fmt.Errorf("movers do not lease jobs of this kind")}
		}
	}
	return out, nil
}

// jobsReady reports whether req can be answered: there are jobs of the kinds, or its number has a
// kept answer. The jobs of a lost answer are already leased; without a retry they would wait until
// their leases end.
func (d *jobDesk) jobsReady(req *wire.MetaRequest, kinds []wire.JobKind) (ready bool, err error) {
	if len(kinds) == 0 {
		return false, nil
	}
	err = d.Store.View(func(r kvtx.Reader, _ uint64) error {
		jobs, err := jobs.PendingJobs(d.Machine.View(r), kinds, 1)
		if ready = len(jobs) > 0; ready || err != nil || req.Session == 0 {
			return err
		}
		ready, err = statesession.Answered(d.Machine.View(r), moraine.SessionID(req.Session), req.Number)
		return err
	})
	return ready, err
}

func (d *jobDesk) noJobs() *wire.MetaResponse {
	return &wire.MetaResponse{Result: &wire.MetaResponse_Jobs{Jobs: &wire.JobsReply{
		LeaseMillis: record.JobLeaseMillis}}}
}

// listJobs answers from the state. A confined client sees only a job whose number it knows.
func (l *leader) listJobs(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	if c.Caller.Scope != "/" && c.Req.GetListJobs().GetId() == 0 {
		return nil, lead.Denied("a client confined to %s may ask only for a job by its number", c.Caller.Scope)
	}
	return l.read(ctx, c)
}

// getStep answers a checkpoint's state. If requested it waits until the checkpoint is committed at a
// level or has failed.
func (l *leader) getStep(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	asked := c.Req.GetGetStep()
	until := l.WaitUntil(ctx, asked.GetWaitMillis())
	for {
		fired := l.steps.Wait()
		resp, err := l.read(ctx, c)
		if err != nil || resp.GetError() != nil {
			return resp, err
		}
		left := until.Sub(l.Clock.Now())
		if left <= 0 || ended(resp.GetStep().GetStep(), asked.GetLevel()) {
			return resp, nil
		}
		if err := l.Await(ctx, fired, left); err != nil {
			return nil, err
		}
	}
}

// ended reports whether a checkpoint reached a final state, and if that is committed, a level, or
// stays in memory and will not reach it.
func ended(s *wire.Step, level uint32) bool {
	switch s.GetState() {
	case wire.StepState_STEP_STATE_OPEN, wire.StepState_STEP_STATE_SEALED:
		return false
	case wire.StepState_STEP_STATE_COMMITTED:
		return s.GetLevel() >= level || s.GetStaysInMemory()
	default:
		return true
	}
}

// resolveStep answers a read or, if the request fixes the parent of an attempt, proposes a command.
func (l *leader) resolveStep(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	if ops.Of(c.Req).IsRead(c.Req) {
		return l.read(ctx, c)
	}
	return l.Mutate(ctx, c)
}

// abortSilentSteps aborts the checkpoints whose ranks are silent, and names the missing ranks.
func (d *jobDesk) abortSilentSteps(ctx context.Context, _ time.Time) error {
	var silent []*wire.AbortStep
	err := d.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
		silent, d.silentAfter, err = ckpt.SilentSteps(d.Machine.View(r), d.silentAfter, maxAbort)
		return err
	})
	if err != nil || len(silent) == 0 {
		return err
	}
	d.Metrics.StepsAborted.Add(float64(len(silent)))
	_, err = d.Command(ctx, &statepb.Command{Op: &statepb.Command_AbortSteps{AbortSteps: &statepb.AbortSteps{Steps: silent}}})
	return err
}

// maxAbort bounds the checkpoints that one command aborts.
const maxAbort = 16
