// Package lead is what the parts of a leadership share. A Term is one leadership of a metadata
// server: the state that its parts read, the log that they propose to, the clock, and the
// metrics. Package metadata makes a Term when its server begins to lead, and gives it to the
// parts (leases, fleet, repair, members). A request comes to a part as a Call, whose caller the
// door has checked; the part waits for a ReadBarrier where it reads, reads with View, and
// changes the state with Propose or Command.
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
	// BeatEvery is how often a server says of itself what the leader cannot know.
	BeatEvery = time.Second
	// JobPoll is how often waiters look by themselves: a job whose retry was
	// put off becomes ready by the passing of time alone.
	JobPoll = time.Second
	// MemberSilent is how long another metadata server may not have answered the leader
	// before it is shown as not alive.
	MemberSilent = 3 * time.Second
)

// State is the replicated state, as the parts of a leadership read it.
type State interface {
	// ReadBarrier returns once View shows every entry that was committed when it was
	// called. It fails where this server does not lead.
	ReadBarrier(ctx context.Context) error
	// View calls fn with a consistent state, as of the entry applied.
	View(fn func(r kvtx.Reader, applied uint64) error) error
	// Members returns the servers that replicate the log.
	Members() []Member
	// Term is the present term of the log.
	Term() uint64
	// LowSpace reports whether the disk is nearly full.
	LowSpace() bool
}

// Commands proposes commands to the replicated log.
type Commands interface {
	// Command proposes what the leader itself decides. A failure that the state machine
	// answers is an error.
	Command(ctx context.Context, cmd *statepb.Command) (*wire.MetaResponse, error)
	// Propose proposes a caller's request, and returns what the state machine answered:
	// its failures are in the response.
	Propose(ctx context.Context, caller *statepb.Caller, req *wire.MetaRequest) (*wire.MetaResponse, error)
}

// ClusterID is what no command changes while a leader leads.
type ClusterID struct {
	UUID        moraine.UUID
	Incarnation moraine.Incarnation
}

// Term is one leadership of this server, as its parts use it. It is made when the server
// begins to lead. Nothing but the feature level changes after that.
type Term struct {
	Commands
	Node    string // the id of this server
	Cluster ClusterID
	Store   State
	Machine *state.Machine
	Clock   clock.Clock
	Log     *slog.Logger
	Metrics *Metrics
	Began   time.Time
	Done    <-chan struct{} // closed when the leadership ends
	// NotLeader returns the error that names the server that leads now.
	NotLeader func() error

	level atomic.Uint64 // the feature level that the state is known to have reached
}

// Mutate serves a request that is a command as it stands.
func (t *Term) Mutate(ctx context.Context, c *Call) (*wire.MetaResponse, error) {
	return t.Propose(ctx, c.Caller, c.Req)
}

// Speaks fails while the state is below a feature level: what is of that level
// must not be proposed, since a server of an earlier build would stop.
func (t *Term) Speaks(ctx context.Context, level uint64) error {
	if eager || level <= t.level.Load() { // it never falls
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

// ClusterTime is in milliseconds; 0 where the state cannot be read.
func (t *Term) ClusterTime() (now uint64) {
	_ = t.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
		now, err = kvtx.ClusterTime(t.Machine.View(r))
		return err
	})
	return now
}
