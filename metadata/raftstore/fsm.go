package raftstore

import (
	"fmt"
	"io"

	"github.com/hashicorp/raft"
)

// machine applies raft's log to the FSM: it is raft's view of the state. Raft's single goroutine
// for the state calls all methods except wait and index.
type machine struct {
	deps      *Deps
	fatal     *fatal
	state     *stateDB
	snapshots *snapshotStore
	fsm       FSM
	// last is the index that the state has reached.
	last *watermark
	took latencies // durations of ApplyBatch
}

var _ raft.BatchingFSM = (*machine)(nil)

// Apply implements raft.FSM.
func (m *machine) Apply(l *raft.Log) any { return m.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch implements raft.BatchingFSM: it makes one commit for all entries together with the
// last index. It skips entries at or below the applied index, which a restart delivers again.
func (m *machine) ApplyBatch(logs []*raft.Log) []any {
	start := m.deps.Clock.Now()
	results := make([]any, len(logs))
	reached := m.last.value()
	last := logs[len(logs)-1].Index
	if last <= reached {
		return results
	}
	if m.fatal.err() != nil {
		return results // nothing more is applied, and Propose does not use these results
	}
	kv := m.state.newApplyKV()
	applied := 0
	for i, l := range logs {
		if l.Index <= reached || l.Type != raft.LogCommand {
			continue
		}
		result, err := m.fsm.ApplyEntry(kv, l.Index, l.Data)
		if err != nil {
			m.fatal.set(fmt.Errorf("apply entry %d: %w", l.Index, err))
			return results
		}
		results[i] = result
		applied++
	}
	if err := m.state.commit(kv, last); err != nil {
		m.fatal.set(fmt.Errorf("commit the state at entry %d: %w", last, err))
		return results
	}
	m.last.raise(last)
	metrics := m.deps.Metrics
	metrics.Applied.Set(float64(last))
	metrics.Entries.Add(float64(applied))
	metrics.ApplyBatch.Observe(float64(applied))
	took := m.deps.Clock.Since(start)
	metrics.ApplySeconds.Observe(took.Seconds())
	m.took.observe(took)
	return results
}

// Snapshot implements raft.FSM. It writes what was applied to the database and captures nothing.
// Persist takes the state as it then is, which has every entry up to raft's index and perhaps later
// ones, and records its index. After a restore the node skips later entries that the log delivers
// again.
func (m *machine) Snapshot() (raft.FSMSnapshot, error) {
	if err := m.fatal.err(); err != nil {
		return nil, err
	}
	if err := m.state.spill(); err != nil {
		m.fatal.set(fmt.Errorf("write out the state for a snapshot: %w", err))
		return nil, err
	}
	return statePicture{}, nil
}

type statePicture struct{}

// Persist implements raft.FSMSnapshot.
func (statePicture) Persist(sink raft.SnapshotSink) error {
	own, ok := sink.(*checkpointSink)
	if !ok {
		return fmt.Errorf("raftstore: unexpected type %T of a snapshot sink", sink)
	}
	return own.capture()
}

// Release implements raft.FSMSnapshot.
func (statePicture) Release() {}

// Restore implements raft.FSM: it replaces the state by that of the snapshot behind source. It does
// not read source but links the snapshot's files. After an error either the state is unchanged or
// the node ends.
func (m *machine) Restore(source io.ReadCloser) error {
	defer source.Close()
	from := source
	if counted, ok := from.(raft.ReadCloserWrapper); ok {
		from = counted.WrappedReadCloser()
	}
	own, ok := from.(*snapshotReader)
	if !ok {
		return fmt.Errorf("raftstore: snapshot source of type %T", from)
	}
	return m.restore(own.snap)
}
