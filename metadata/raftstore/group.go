package raftstore

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// group is the Raft group of this node: raft itself and the members. It needs no lock:
// raft is set once, before Store.Ready, and has its own.
type group struct {
	cfg     *Config
	raft    *raft.Raft
	started atomic.Pointer[raft.Raft] // raft, for callers that may be early
}

// configuration returns the latest configuration and whether it is known to be committed; nil
// before raft was started.
func (g *group) configuration() (servers []raft.Server, committed bool) {
	r := g.started.Load()
	if r == nil {
		return nil, false
	}
	f := r.GetConfiguration() // answered without a wait
	if f.Error() != nil {
		return nil, false
	}
	return f.Configuration().Servers, f.Index() <= r.CommitIndex()
}

// member returns the addresses of a node of the group: from Config, otherwise from the log.
func (g *group) member(id string) (Peer, bool) {
	if p, ok := g.cfg.peer(id); ok {
		return p, true
	}
	servers, _ := g.configuration()
	for _, srv := range servers {
		if string(srv.ID) == id {
			return Peer{ID: id, Address: string(srv.Address), Client: []string{string(srv.Address)}}, true
		}
	}
	return Peer{}, false
}

// serverAddr returns members' addresses from Config, whatever the log has.
func (g *group) serverAddr(id raft.ServerID) (raft.ServerAddress, error) {
	if p, ok := g.member(string(id)); ok {
		return raft.ServerAddress(p.Address), nil
	}
	return "", fmt.Errorf("%s is no member", id)
}

// voters returns the voters of the latest configuration.
func (g *group) voters() []raft.ServerID {
	servers, _ := g.configuration()
	var out []raft.ServerID
	for _, srv := range servers {
		if srv.Suffrage == raft.Voter {
			out = append(out, srv.ID)
		}
	}
	return out
}

// address returns the address of id; the transport asks the address book first.
func (g *group) address(id raft.ServerID) raft.ServerAddress {
	p, _ := g.member(string(id))
	return raft.ServerAddress(p.Address)
}

// votesAlone reports whether the group has no other voter.
func (g *group) votesAlone() bool {
	servers, _ := g.configuration()
	return !slices.ContainsFunc(servers, func(srv raft.Server) bool {
		return srv.Suffrage == raft.Voter && string(srv.ID) != g.cfg.Node
	})
}

// leaderAddress returns the leader's address as far as this node knows.
func (g *group) leaderAddress() raft.ServerAddress {
	address, _ := g.raft.LeaderWithID()
	return address
}
