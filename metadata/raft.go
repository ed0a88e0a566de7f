package metadata

import (
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport/wire"
)

// OverRaft returns the Deps.NewStore of a server that keeps its state with raftstore. It fills in
// deps.FSM.
func OverRaft(cfg raftstore.Config, deps raftstore.Deps) func(FSM) (Store, error) {
	return func(fsm FSM) (Store, error) {
		deps.FSM, deps.Incarnation, deps.IncarnationAfter, deps.CheckEntry = fsm, numberOf, raisedBy, state.CheckEntry
		s, err := raftstore.New(cfg, deps)
		if err != nil {
			return nil, err
		}
		return raftNode{s}, nil
	}
}

// numberOf reads the incarnation of a state; 0 if no cluster was made in it yet.
func numberOf(r kvtx.Reader) (moraine.Incarnation, error) {
	info, err := kvtx.Cluster(state.New(partition).View(r))
	if moraine.KindOf(err) == moraine.Unavailable {
		return 0, nil
	}
	return info.Incarnation, err
}

// raftNode adapts a raftstore.Store to Store.
type raftNode struct{ *raftstore.Store }

var (
	_ lead.Membership = raftNode{}
	_ lead.Seating    = raftNode{}
)

// Members implements Store.
func (n raftNode) Members() []lead.Member {
	peers, _ := n.Peers()
	leader, _ := n.Leader()
	out := make([]lead.Member, len(peers))
	for i, p := range peers {
		out[i] = lead.Member{
			ID: p.ID, Addresses: p.Client, Voter: p.Voter, Leader: p.ID == leader, Match: p.LastIndex,
			Alive: p.Contact >= 0 && p.Contact < lead.MemberSilent, Contact: p.Contact,
		}
	}
	return out
}

// Seat implements Seating.
func (n raftNode) Seat() (lead.Seat, error) {
	id, err := n.Identity()
	return lead.Seat{DataID: id.DataID, Admitted: id.Admitted, Entered: id.Entered}, err
}

// Settled implements Membership.
func (n raftNode) Settled() bool {
	_, settled := n.Peers()
	return settled
}

// MemberStatus implements Membership.
func (n raftNode) MemberStatus() *wire.MemberStatus {
	st := n.Status()
	return &wire.MemberStatus{
		Term: st.Term, Applied: st.Applied, Commit: st.Commit, LogFirst: st.FirstIndex, LogLast: st.LastIndex, LogBytes: uint64(max(st.LogBytes, 0)),
		SnapshotIndex: st.Snapshot, SnapshotBytes: uint64(max(st.SnapshotBytes, 0)), SnapshotAgeMillis: lead.Millis(st.SnapshotAge),
		Apply: latenciesToWire(st.Apply), Append: latenciesToWire(st.Append), LowSpace: st.LowSpace,
		LeaderContactMillis: lead.Millis(st.LeaderContact), AppendWaitsMillis: uint64(st.AppendWaits.Milliseconds()),
	}
}

func latenciesToWire(l raftstore.Latencies) *wire.Latencies {
	return &wire.Latencies{Count: l.Count, P50Micros: uint64(l.P50.Microseconds()), P99Micros: uint64(l.P99.Microseconds()),
		MaxMicros: uint64(l.Max.Microseconds())}
}

// Healthy implements Store. If its disk fails, a node ends its Run instead.
func (n raftNode) Healthy() error {
	select {
	case <-n.Ready():
		return n.Stalled()
	default:
		return &moraine.Error{Op: "raftstore", Kind: moraine.Unavailable, Err: fmt.Errorf("the log and the state are being opened")}
	}
}
