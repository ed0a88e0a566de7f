// Package repair keeps stripes whole, spread and dense. It finds what is missing or in a poor
// place, and queues jobs; movers carry these out.
//
// The path of a lost chunk: a device reports what it holds (Reports.ReportChunks, report.go), and
// a chunk that the state expects there is not among it -> the stripe is queued for repair ->
// Queue looks through what is queued, plans where each chunk goes (plan.go), and makes jobs ->
// a mover leases a job, records where it puts chunks (Queue.BeginRepair), and rebuilds them ->
// Queue.CommitRepair publishes them, unless a host has fallen silent meanwhile (healing.go).
//
// Beside that: Rebalancer moves chunks from the fullest devices to the emptiest (rebalance.go,
// balance.go); Rewriter looks for stripes that are mostly dead and for small files to pack
// (rewrite.go, rewritelook.go, packlook.go); Levels raises the level of files whose chunks have
// left memory; steploss.go looks for checkpoints that have lost bytes. Each begins again with
// each leadership, from the state.
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

// Config is what an operator may set of it; metadata.Config says what each is.
type Config struct {
	Suspect, Grace, RepairGrace  time.Duration
	MaxRepairs, RepairsPerSecond int
	MinProtection                int
	RewriteLive                  int
	RewriteEvery, PackAfter      time.Duration
	RewriteBytesPerSecond        int64
	// MaxMissing is how many missing chunks one slice of a report queues: a slice with more
	// is cut there, and the device reports from there on.
	MaxMissing uint64
}

// Leader is what repair asks of the leader.
type Leader interface {
	// PermitRepairs signs the capability to repair the chunks of intents.
	PermitRepairs(c *lead.Call, intents []*wire.Intent) ([]byte, error)
	// PermitStripes gives each stripe of a list the capability to read it.
	PermitStripes(c *lead.Call, stripes []*wire.Stripe) error
	// Scopes are the directories that live sessions are confined to.
	Scopes() map[moraine.InodeID]bool
}

// Repair is what one leadership does to keep stripes whole, spread and dense.
type Repair struct {
	Queue      *Queue
	Rebalancer *Rebalancer
	Rewriter   *Rewriter
	Reports    *Reports
	Levels     *Levels
	losses     *lossWatch
}

// New makes the memory of a leadership that has not looked at anything yet. changed is set
// when the repair queue, or what can be done about it, has changed.
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

// Works are the loops that run as long as the leadership does.
func (p *Repair) Works() []func(context.Context) {
	return []func(context.Context){p.Queue.scheduleRepairs, p.Rebalancer.rebalance, p.Levels.raiseLevels, p.losses.judgeSteps,
		p.Rewriter.rewriteStripes, p.Reports.adoptStrays}
}

// Observe wakes what the events of an applied command concern.
func (p *Repair) Observe(ev *kvtx.Events) {
	if ev.RepairsQueued {
		p.Queue.changed.Set()
	}
	if ev.Settled {
		p.Levels.settled.Set()
	}
}

// Describe says for people how repair, rebalancing and rewriting go. queued is how many stripes
// wait for repair.
func (p *Repair) Describe(r kvtx.Reader, queued uint64, reply *wire.ClusterReply) (err error) {
	now := p.Queue.Clock.Now()
	reply.Rebalance, reply.Rewriting = p.Rebalancer.report(now), p.Rewriter.now(now)
	reply.Waits = p.Queue.waitsNow(r, queued)
	reply.Healing, err = p.Queue.healingNow(r, queued)
	return err
}
