package raftstore

import (
	"time"

	"github.com/hashicorp/raft"
)

// Status describes a node, for operators. Its parts are read one after the
// other and need not fit together.
type Status struct {
	Node   string
	Leader string // "" where none is known
	Leads  bool   // this node leads and serves
	Term   uint64
	// Applied is the index that the state has reached, Commit the index up to
	// which entries are known to be on a majority.
	Applied, Commit uint64
	// FirstIndex and LastIndex are the ends of the log; both 0 where it is empty.
	FirstIndex, LastIndex uint64
	LogBytes              int64
	// Snapshot is the index of the newest snapshot, 0 if there is none.
	Snapshot uint64
	LowSpace bool
	Peers    []PeerStatus
}

// PeerStatus describes a voter, this node too.
type PeerStatus struct {
	ID      string
	Address string
	Client  []string
	// LastIndex is the end of its log and Contact how long ago it answered, as
	// this node has heard as leader; 0 and negative where it has not.
	LastIndex uint64
	Contact   time.Duration
}

// Status returns the node's status. Before Run is ready it holds names only.
func (s *Store) Status() Status {
	st := Status{Node: s.cfg.Node, LowSpace: s.LowSpace()}
	select {
	case <-s.ready:
	default:
		return st
	}
	st.Leader, st.Leads = s.Leader()
	st.Term = s.raft.CurrentTerm()
	st.Applied = s.machine.last.value()
	st.Commit = s.raft.CommitIndex()
	st.FirstIndex, _ = s.log.FirstIndex() // fails only once the node has stopped
	st.LastIndex = s.raft.LastIndex()
	st.LogBytes, _ = s.log.sizeBytes()
	if snap := s.snapshots.newest(); snap != nil {
		st.Snapshot = snap.meta.Index
	}
	for _, id := range s.voters() {
		st.Peers = append(st.Peers, s.peerStatus(id, st.LastIndex))
	}
	return st
}

func (s *Store) peerStatus(id raft.ServerID, own uint64) PeerStatus {
	p, _ := s.cfg.peer(string(id))
	ps := PeerStatus{ID: string(id), Address: p.Address, Client: p.Client, Contact: -1}
	if string(id) == s.cfg.Node {
		ps.LastIndex, ps.Contact = own, 0
		return ps
	}
	if a := s.transport.acks.peer(id); !a.at.IsZero() {
		ps.LastIndex, ps.Contact = a.last, s.deps.Clock.Since(a.at)
	}
	return ps
}
