package metadata

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/leases"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/kvtx"
)

// FSM applies entries of the replicated log; the server gives one to its store.
type FSM interface {
	// ApplyEntry applies one committed log entry to kv. The result is handed to
	// whoever proposed the entry here. An error stops the node: its state is
	// then as if the entry had not been applied.
	ApplyEntry(kv kvtx.KV, index uint64, entry []byte) (any, error)
}

// Store is the replicated log and the state that it made. metadata/raftstore is
// the real one. All methods but Run may be called concurrently, once Run has
// been called.
type Store interface {
	// Run opens the store, takes part in the cluster, and returns after ctx
	// ended and all that it began has ended.
	Run(ctx context.Context) error
	// Propose replicates an entry and returns what the FSM answered. On error
	// whether it took effect is unknown, but for NotLeader before it was sent;
	// it may take effect later, but not after an entry that this leader proposes
	// from then on.
	Propose(ctx context.Context, entry []byte) (any, error)
	// ReadBarrier returns once View shows every entry that was committed when
	// it was called. It fails where this node does not lead.
	ReadBarrier(ctx context.Context) error
	// View calls fn with a consistent state, as of the entry applied.
	View(fn func(r kvtx.Reader, applied uint64) error) error
	// Leader returns the id of the node that leads, "" if none is known, and
	// whether it is this one.
	Leader() (id string, here bool)
	// LeadershipChanges gets true when this node begins to lead, and false when
	// it has stopped.
	LeadershipChanges() <-chan bool
	// Term is the present term of the log: it rises with every leader.
	Term() uint64
	// Members returns the servers that replicate the log.
	Members() []lead.Member
	// LowSpace is whether the disk is so full that nothing may grow.
	LowSpace() bool
	// Healthy returns why the store cannot do its work, or nil.
	Healthy() error
}

// machineFSM applies entries with the state machine.
type machineFSM struct {
	machine *state.Machine
	// diverged gets a value when this replica was found to differ.
	diverged chan<- struct{}
	lease    *leases.Table
	// spoken is set once the state was found to be of a level that this build speaks.
	spoken *atomic.Bool
	clock  clock.Clock
	took   *applyTimes
}

// checkLevel refuses a state past the level that this build speaks: a later
// build has brought it there, and what its commands mean now is not known here.
// Once is enough: a rise is a command, and refused as one.
func (f machineFSM) checkLevel(kv kvtx.KV) error {
	if f.spoken.Load() {
		return nil
	}
	info, err := kvtx.Cluster(f.machine.View(kv))
	if err != nil && moraine.KindOf(err) != moraine.Unavailable {
		return err
	}
	if info.FeatureLevel > moraine.FeatureLevel {
		return &moraine.Error{Op: "metadata.ApplyEntry", Kind: moraine.NewerFormat,
			Err: fmt.Errorf("the cluster is at feature level %d, and this build speaks up to %d: start a newer one", info.FeatureLevel, moraine.FeatureLevel)}
	}
	f.spoken.Store(err == nil)
	return nil
}

// ApplyEntry implements FSM; the result is a []state.Result, one for each
// command of the entry, in order.
func (f machineFSM) ApplyEntry(kv kvtx.KV, index uint64, entry []byte) (any, error) {
	if err := f.checkLevel(kv); err != nil {
		return nil, err
	}
	commands, err := state.DecodeEntry(entry)
	if err != nil {
		return nil, &moraine.Error{Op: "metadata.ApplyEntry", Ref: fmt.Sprint(index), Kind: moraine.KindOf(err), Err: err}
	}
	batch, err := f.machine.Begin(kv, index)
	if err != nil {
		return nil, err
	}
	results := make([]state.Result, len(commands))
	for i, cmd := range commands {
		began := f.clock.Now()
		results[i], err = batch.Apply(cmd)
		f.took.note(cmd, f.clock.Since(began))
		if err != nil {
			return nil, &moraine.Error{Op: "metadata.ApplyEntry", Ref: fmt.Sprintf("%d, command %d", index, i),
				Kind: moraine.KindOf(err), Err: err}
		}
		if results[i].Events.Diverged {
			select {
			case f.diverged <- struct{}{}:
			default: // it is known
			}
		}
	}
	entries := batch.Entries()
	if err := batch.Flush(); err != nil {
		return nil, err
	}
	f.lease.Apply(index, entries, commands, results)
	return results, nil
}
