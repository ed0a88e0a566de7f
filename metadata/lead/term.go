// Package lead has what the parts of a leadership share. A Term is one
// leadership of a metadata server. It has the state that its parts read, the
// log to which they propose, the clock and the metrics. Package metadata makes
// a Term when its server becomes leader, and passes it to the parts (leases,
// fleet, repair, members). A request arrives at a part as a Call, with a caller
// that the door has checked. If the part reads, it waits for a ReadBarrier and
// reads with View. It changes the state with Propose or Command.
package lead

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// TickEvery is how often cluster time is advanced.
	TickEvery = time.Second
	// BeatEvery is how often a server reports to the leader what the leader cannot know.
	BeatEvery = time.Second
	// JobPoll is how often waiters check without being woken, because a delayed job becomes ready
	// only by the passing of time.
	JobPoll = time.Second
	// MemberSilent is how long another metadata server may fail to answer the leader before it is
	// shown as not alive.
	MemberSilent = 3 * time.Second
)

// State is the replicated state, as the parts of a leadership read it.
type State interface {
	// ReadBarrier returns once View shows every entry that was committed when it was called. It
	// fails if this server does not lead.
	ReadBarrier(ctx context.Context) error
	// View calls fn with a consistent state after the entry applied.
	View(fn func(r kvtx.Reader, applied uint64) error) error
	// Members returns the servers of the replicated log.
	Members() []Member
	// Term is the present Raft term.
	Term() uint64
	// LowSpace reports whether the disk is nearly full.
	LowSpace() bool
}

// Commands proposes commands to the replicated log.
type Commands interface {
	// Command proposes a command of the leader itself. It returns a failure from the state machine
	// as an error.
	Command(ctx context.Context, cmd *statepb.Command) (*wire.MetaResponse, error)
	// Propose proposes a caller's request and returns the state machine's answer, with failures in
	// the response.
	Propose(ctx context.Context, caller *statepb.Caller, req *wire.MetaRequest) (*wire.MetaResponse, error)
}

// ClusterID has the cluster's fields that no command changes during a leadership.
type ClusterID struct {
	UUID        moraine.UUID
	Incarnation moraine.Incarnation
}

// Term is one leadership of this server, as its parts use it. It is created when the leadership
// begins. After that only the feature level changes.
type Term struct {
	Commands
	Node    string // this server's ID
	Cluster ClusterID
	Store   State
	Machine *state.Machine
	Clock   clock.Clock
	Log     *slog.Logger
	Metrics *Metrics
	Began   time.Time
	Done    <-chan struct{} // closed when the leadership ends
	// NotLeader returns the error that names the present leader.
	NotLeader func() error
	// Hasty: it proposes above the cluster's feature level (metadata.Config.Hasty).
	Hasty bool

	level atomic.Uint64 // feature level that the state is known to have reached
}

// Mutate proposes a request that is already a command.
func (t *Term) Mutate(ctx context.Context, c *Call) (*wire.MetaResponse, error) {
	return t.Propose(ctx, c.Caller, c.Req)
}

// Speaks fails while the state is below a feature level. Nothing of that level may be proposed
// then, because a server of an older build would stop.
func (t *Term) Speaks(ctx context.Context, level uint64) error {
	if t.Hasty || level <= t.level.Load() { // the level never decreases
		return nil
	}
	if err := t.Store.ReadBarrier(ctx); err != nil {
		return err
	}
	return t.Store.View(func(r kvtx.Reader, _ uint64) error {
		info, err := kvtx.Cluster(t.Machine.View(r))
		t.level.Store(max(t.level.Load(), info.FeatureLevel))
		if err == nil && info.FeatureLevel < level {
			err = &moraine.Error{Kind: moraine.Unimplemented,
				Err: fmt.Errorf("the cluster has feature level %d, and this needs %d: finish the upgrade first (`moraine cluster upgrade --finish`)", info.FeatureLevel, level)}
		}
		return err
	})
}

// ClusterTime returns the cluster time in milliseconds; 0 if the state cannot be read.
func (t *Term) ClusterTime() (now uint64) {
	_ = t.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
		now, err = kvtx.ClusterTime(t.Machine.View(r))
		return err
	})
	return now
}
