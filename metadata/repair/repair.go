// Package repair keeps stripes whole, spread and dense. It finds chunks that are missing or badly
// placed, and queues jobs that movers carry out.
//
// The path of a lost chunk: a device reports its chunks (Reports.ReportChunks, report.go), and an
// expected one is not among them. The state queues the stripe for repair. Queue inspects the queue,
// plans where each chunk goes (plan.go), and creates jobs. A mover leases a job, records where it
// writes chunks (Queue.BeginRepair), and rebuilds them. Queue.CommitRepair publishes them, unless a
// host became silent meanwhile (healing.go).
//
// In addition, Rebalancer moves chunks from the fullest devices to the emptiest (rebalance.go,
// balance.go). Rewriter searches for sparse stripes and for small files to pack (rewrite.go,
// rewritelook.go, packlook.go). Levels raises the level of files whose chunks are durable.
// steploss.go searches for checkpoints with lost bytes. Each starts again with each leadership,
// from the state.
package repair

import (
	"context"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/fleet"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport/wire"
)

// Config has the settings of repair; metadata.Config describes each.
type Config struct {
	Suspect, Grace, RepairGrace  time.Duration
	MaxRepairs, RepairsPerSecond int
	MinProtection                int
	RewriteLive                  int
	RewriteEvery, PackAfter      time.Duration
	RewriteBytesPerSecond        int64
	// MaxMissing is the number of missing chunks that one slice of a report queues. A slice with
	// more is cut there, and the device reports from there on.
	MaxMissing uint64
	// JudgeFor bounds how long one slice of a report is judged. A slice that takes longer is cut
	// too: its sender gives up an attempt after some seconds.
	JudgeFor time.Duration
}

// Leader is what repair needs from the leading server.
type Leader interface {
	// PermitRepairs signs the capability to repair the chunks of intents.
	PermitRepairs(c *lead.Call, intents []*wire.Intent) ([]byte, error)
	// PermitStripes adds to each stripe of a list the capability to read it.
	PermitStripes(c *lead.Call, stripes []*wire.Stripe) error
	// Scopes are the directories to which live sessions are confined.
	Scopes() map[moraine.InodeID]bool
}

// Repair is one leadership's work to keep stripes whole, spread and dense.
type Repair struct {
	Queue      *Queue
	Rebalancer *Rebalancer
	Rewriter   *Rewriter
	Reports    *Reports
	Levels     *Levels
	losses     *lossWatch
}

// New returns the repair part of a new leadership, which has inspected nothing yet. The part sets
// changed when the repair queue, or the possible repairs, change.
func New(t *lead.Term, cfg Config, f *fleet.Fleet, leader Leader, changed lead.Poke) *Repair {
	rb := &Rebalancer{Term: t, cfg: cfg, fleet: f, steered: lead.NewPoke(), from: map[uint32]moraine.StripeID{}}
	return &Repair{
		Queue:      &Queue{Term: t, cfg: cfg, fleet: f, leader: leader, rebalancer: rb, changed: changed},
		Rebalancer: rb,
		Rewriter:   &Rewriter{Term: t, cfg: cfg, fleet: f, leader: leader},
		Reports:    &Reports{Term: t, cfg: cfg, fleet: f, leader: leader, passes: newPasses(), strays: newStrays()},
		Levels:     &Levels{Term: t, settled: lead.NewPoke()},
		losses:     &lossWatch{Term: t},
	}
}

// Works returns the loops that run during the leadership.
func (p *Repair) Works() []func(context.Context) {
	return []func(context.Context){p.Queue.scheduleRepairs, p.Rebalancer.rebalance, p.Levels.raiseLevels, p.losses.judgeSteps,
		p.Rewriter.rewriteStripes, p.Reports.adoptStrays}
}

// Observe wakes the loops that the events of an applied command concern.
func (p *Repair) Observe(ev *kvtx.Events) {
	if ev.RepairsQueued {
		p.Queue.changed.Set()
	}
	if ev.Settled {
		p.Levels.settled.Set()
	}
}

// Describe adds the progress of repair, rebalancing and rewriting to a reply. queued is the number
// of stripes that wait for repair.
func (p *Repair) Describe(r kvtx.Reader, queued uint64, reply *wire.ClusterReply) (err error) {
	now := p.Queue.Clock.Now()
	reply.Rebalance, reply.Rewriting = p.Rebalancer.report(now), p.Rewriter.now(now)
	reply.Waits = p.Queue.waitsNow(r, queued)
	reply.Healing, err = p.Queue.healingNow(r, queued)
	return err
}
