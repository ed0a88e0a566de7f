package metadata

import (
	"fmt"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/raftstore"
)

// memberSilent is how long another metadata server may not have answered the
// leader before it is shown as not alive.
const memberSilent = 3 * time.Second

// OverRaft returns what Deps.NewStore must be for a server that keeps its state
// with raftstore. deps.FSM is filled in.
func OverRaft(cfg raftstore.Config, deps raftstore.Deps) func(FSM) (Store, error) {
	return func(fsm FSM) (Store, error) {
		deps.FSM = fsm
		s, err := raftstore.New(cfg, deps)
		if err != nil {
			return nil, err
		}
		return raftNode{s}, nil
	}
}

// raftNode is a raftstore.Store as a Store.
type raftNode struct{ *raftstore.Store }

// Term implements Store.
func (n raftNode) Term() uint64 { return n.Status().Term }

// Members implements Store.
func (n raftNode) Members() []Member {
	st := n.Status()
	out := make([]Member, len(st.Peers))
	for i, p := range st.Peers {
		out[i] = Member{
			ID: p.ID, Voter: true, Leader: p.ID == st.Leader, Match: p.LastIndex,
			Alive: p.Contact >= 0 && p.Contact < memberSilent,
		}
	}
	return out
}

// Healthy implements Store. A node whose disk failed ends its Run instead.
func (n raftNode) Healthy() error {
	select {
	case <-n.Ready():
		return nil
	default:
		return &moraine.Error{Op: "raftstore", Kind: moraine.Unavailable, Err: fmt.Errorf("the log and the state are being opened")}
	}
}
