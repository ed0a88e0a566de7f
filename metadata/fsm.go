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

// FSM applies entries of the replicated log. The server passes one to its store.
type FSM interface {
	// ApplyEntry applies one committed log entry to kv. The store returns the result to the local
	// proposer of the entry. An error stops the node; its state is then as if the entry had not
	// been applied.
	ApplyEntry(kv kvtx.KV, index uint64, entry []byte) (any, error)
}

// Store is the replicated log and the state that it produces. metadata/raftstore is the production
// implementation. After Run has been called, all other methods may be called concurrently.
type Store interface {
	// Run opens the store and takes part in the cluster. It returns after ctx has ended and
	// everything that it started has ended.
	Run(ctx context.Context) error
	// Propose replicates an entry and returns the FSM's result. After an error the effect is
	// unknown, except for NotLeader before the entry was sent. The entry may take effect later, but
	// not after an entry that this leader proposes from then on.
	Propose(ctx context.Context, entry []byte) (any, error)
	// ReadBarrier returns once View shows every entry that was committed when it was called. It
	// fails if this node does not lead.
	ReadBarrier(ctx context.Context) error
	// View calls fn with a consistent state after the entry applied.
	View(fn func(r kvtx.Reader, applied uint64) error) error
	// Leader returns the ID of the leading node, "" if unknown, and whether it is this one.
	Leader() (id string, here bool)
	// LeadershipChanges sends true when this node begins to lead, and false when it has stopped.
	LeadershipChanges() <-chan bool
	// Term is the present Raft term. It grows with every leader.
	Term() uint64
	// Members returns the servers of the replicated log.
	Members() []lead.Member
	// LowSpace reports whether the disk is so full that nothing may grow.
	LowSpace() bool
	// Healthy returns why the store cannot do its work, or nil.
	Healthy() error
}

// machineFSM applies entries with the state machine.
type machineFSM struct {
	machine *state.Machine
	// diverged receives a value when this replica was found to differ.
	diverged chan<- struct{}
	lease    *leases.Table
	// spoken is set once the state's level is known to be one that this build supports.
	spoken *atomic.Bool
	clock  clock.Clock
	took   *applyTimes
}

// checkLevel refuses a state above the level that this build supports. A later build raised it, and
// this build does not know what its commands mean. One check is enough: raising the level is a
// command, which is also refused.
func (f machineFSM) checkLevel(kv kvtx.KV) error {
	if f.spoken.Load() {
		return nil
	}
	info, err := kvtx.Cluster(f.machine.View(kv))
	if err != nil && moraine.KindOf(err) != moraine.Unavailable {
		return err
	}
	if info.FeatureLevel > f.machine.Level {
		return &moraine.Error{Op: "metadata.ApplyEntry", Kind: moraine.NewerFormat,
			Err: fmt.Errorf("the cluster has feature level %d, but this build supports up to %d: start a newer build", info.FeatureLevel, f.machine.Level)}
	}
	f.spoken.Store(err == nil)
	return nil
}

// ApplyEntry implements FSM. The result is a []state.Result, one per command of the entry, in
// order.
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
			default: // it is already reported
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
