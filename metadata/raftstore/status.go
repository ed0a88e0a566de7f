package raftstore

import (
	"time"

	"github.com/hashicorp/raft"
)

// Status describes a node for operators. Its parts are read one after the other and need not be
// consistent.
type Status struct {
	Node   string
	Leader string // "" if unknown
	Leads  bool   // this node leads and serves
	Term   uint64
	// LeaderContact is the time since the last message of a leader; 0 on the leader, negative if
	// there was none.
	LeaderContact time.Duration
	// Applied is the index that the state has reached. Commit is the index up to which entries are
	// known to be on a majority.
	Applied, Commit uint64
	// FirstIndex and LastIndex are the ends of the log; both 0 if it is empty.
	FirstIndex, LastIndex uint64
	LogBytes              int64
	// Snapshot is the index of the newest snapshot, 0 if there is none, and SnapshotBytes its size.
	// SnapshotAge is its age, negative if this process did not make it and the log does not say.
	Snapshot      uint64
	SnapshotBytes int64
	SnapshotAge   time.Duration
	// Apply has the durations of applied batches, Append those of durable appends to the log.
	Apply, Append Latencies
	// AppendWaits is how long the log write in progress has lasted.
	AppendWaits time.Duration
	LowSpace    bool
	// Peers are the members. Settled says whether a majority is known to have agreed to them.
	Peers   []PeerStatus
	Settled bool
}

// PeerStatus describes a member, possibly this node.
type PeerStatus struct {
	ID      string
	Address string
	Client  []string
	Voter   bool
	// LastIndex is the end of its log, and Contact the time since its last answer,
	// as this node knows them as leader. They are 0 and negative if unknown.
	LastIndex uint64
	Contact   time.Duration
}

// Status returns the node's status. Before Run is ready it has only names.
func (s *Store) Status() Status {
	st := Status{Node: s.cfg.Node, LowSpace: s.disk.low(), LeaderContact: -1}
	select {
	case <-s.ready:
	default:
		return st
	}
	st.Leader, st.Leads = s.tracker.leader()
	st.Term = s.group.raft.CurrentTerm()
	st.LeaderContact = s.leaderContact()
	st.AppendWaits = s.log.stalled()
	st.Applied = s.reached.value()
	st.Commit = s.group.raft.CommitIndex()
	st.FirstIndex, _ = s.log.FirstIndex() // fails only after the node has stopped
	st.LastIndex = s.group.raft.LastIndex()
	st.LogBytes, _ = s.log.sizeBytes()
	if snap := s.snapshots.newest(); snap != nil {
		st.Snapshot, st.SnapshotBytes, st.SnapshotAge = snap.meta.Index, snap.meta.Size, s.snapshotAge(snap)
	}
	st.Apply, st.Append = s.machine.took.quantiles(), s.log.took.quantiles()
	st.Peers, st.Settled = s.Peers()
	return st
}

// leaderContact is Status.LeaderContact.
func (s *Store) leaderContact() time.Duration {
	if s.group.raft.State() == raft.Leader {
		return 0
	}
	at := s.group.raft.LastContact()
	if at.IsZero() {
		return -1
	}
	return max(s.deps.Clock.Since(at), 0)
}

// Peers returns the members and whether they are settled, as in Status, at low cost. Before Run is
// ready there are none.
func (s *Store) Peers() (peers []PeerStatus, settled bool) {
	servers, settled := s.group.configuration()
	if len(servers) == 0 {
		return nil, settled
	}
	own := s.group.started.Load().LastIndex()
	for _, srv := range servers {
		peers = append(peers, s.peerStatus(srv, own))
	}
	return peers, settled
}

// Term returns the present term; 0 before Run is ready.
func (s *Store) Term() uint64 {
	if r := s.group.started.Load(); r != nil {
		return r.CurrentTerm()
	}
	return 0
}

// snapshotAge returns the time since a snapshot's last entry was appended, otherwise since the
// snapshot was made.
func (s *Store) snapshotAge(snap *snapshot) time.Duration {
	made := snap.made
	var entry raft.Log
	if err := s.log.WAL.GetLog(snap.meta.Index, &entry); err == nil && !entry.AppendedAt.IsZero() {
		made = entry.AppendedAt
	}
	if made.IsZero() {
		return -1
	}
	return max(s.deps.Clock.Now().Sub(made), 0)
}

func (s *Store) peerStatus(srv raft.Server, own uint64) PeerStatus {
	id := srv.ID
	p, _ := s.group.member(string(id))
	ps := PeerStatus{ID: string(id), Address: p.Address, Client: p.Client, Voter: srv.Suffrage == raft.Voter, Contact: -1}
	if string(id) == s.cfg.Node {
		ps.LastIndex, ps.Contact = own, 0
		return ps
	}
	if a := s.transport.acks.peer(id); !a.at.IsZero() {
		ps.LastIndex, ps.Contact = a.last, s.deps.Clock.Since(a.at)
	}
	return ps
}
