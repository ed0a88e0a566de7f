package metadata

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// A server's seat is its id together with the directory that it keeps. Raft
// counts on what a member acknowledged, and on whom it voted for, so that one
// which lost its disk must not take part under the id that it had: with one that
// lags behind it could make a majority that lacks what was acknowledged. So the
// state records which directory each id has (state.SetMember), for ever, and a
// directory that is new asks before it takes part for the first time (enter).
// Later the server says each second who it is (beat), and what its build speaks.

const (
	// beatEvery is how often a server says of itself what the leader cannot know.
	beatEvery = time.Second
	// beatTimeout bounds one such request.
	beatTimeout = 2 * time.Second
	// enterRetry is the pause before a server that may not enter yet asks again.
	enterRetry = 200 * time.Millisecond
	// enterPatience is after how long a server that waits says so.
	enterPatience = 5 * time.Second
)

// membership returns what the store can besides; nil where its members cannot
// change.
func (s *Server) membership() Membership {
	m, _ := s.store.(Membership)
	return m
}

// enter waits until this server may take part: at once where it has before;
// else when the leader accepts its directory, or, at the first start of a new
// cluster, when every other server says that it has nothing yet either. An error
// means that it must not.
func (s *Server) enter(ctx context.Context) error {
	m := s.membership()
	if m == nil || s.deps.Dial == nil {
		return nil
	}
	dir, admitted, err := m.Directory()
	if err != nil || admitted {
		return err
	}
	began, told := s.deps.Clock.Now(), false
	for ctx.Err() == nil {
		accepted, waitsFor, err := s.askToEnter(ctx, dir)
		if err != nil {
			return err
		}
		if accepted {
			return m.Admit()
		}
		if !told && s.deps.Clock.Since(began) > enterPatience {
			told = true
			s.deps.Log.Warn("this server has a new directory, and takes part once the leader of its cluster, or at a first start all others, have answered", "waits for", waitsFor)
		}
		sleep(ctx, s.deps.Clock, enterRetry)
	}
	return nil
}

// askToEnter asks every other server once.
func (s *Server) askToEnter(ctx context.Context, dir moraine.UUID) (accepted bool, waitsFor []string, err error) {
	fresh := !s.cfg.Join
	for _, p := range s.cfg.Peers {
		if p.ID == s.cfg.Node {
			continue
		}
		reply, err := s.tell(ctx, p.Addresses, dir)
		switch {
		case err != nil:
			fresh, waitsFor = false, append(waitsFor, p.ID)
		case reply.Refused != "":
			return false, nil, s.refused(reply)
		case reply.Accepted:
			return true, nil, nil
		case !reply.Fresh:
			fresh, waitsFor = false, append(waitsFor, "the leader, which "+p.ID+" does not know")
		}
	}
	return fresh, waitsFor, nil
}

// tell sends a beat to the server at addrs, and, where another one leads that it
// knows of, to that.
func (s *Server) tell(ctx context.Context, addrs []string, dir moraine.UUID) (*wire.MemberBeatReply, error) {
	reply, err := s.sendBeat(ctx, addrs, dir)
	if err != nil || reply.Accepted || reply.Refused != "" || len(reply.LeaderAddresses) == 0 ||
		reply.Leader == s.cfg.Node || reply.Leader == reply.Id {
		return reply, err
	}
	if led, err := s.sendBeat(ctx, reply.LeaderAddresses, dir); err == nil {
		return led, nil
	}
	return reply, nil
}

func (s *Server) sendBeat(ctx context.Context, addrs []string, dir moraine.UUID) (*wire.MemberBeatReply, error) {
	ctx, cancel := context.WithTimeout(ctx, beatTimeout)
	defer cancel()
	beat := &wire.MemberBeat{Id: s.cfg.Node, Directory: dir[:], Status: s.memberStatus()}
	resp, err := s.deps.Dial(addrs).Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_MemberBeat{MemberBeat: beat}})
	if err != nil {
		return nil, err
	}
	if resp.GetMemberBeat() == nil {
		return nil, &moraine.Error{Op: "member beat", Kind: moraine.Unimplemented}
	}
	return resp.GetMemberBeat(), nil
}

// memberStatus is what this server alone knows of itself.
func (s *Server) memberStatus() *wire.MemberStatus {
	st := &wire.MemberStatus{}
	if m := s.membership(); m != nil {
		st = m.MemberStatus()
	}
	st.Level, st.Release = moraine.FeatureLevel, s.cfg.Release
	return st
}

func (s *Server) refused(reply *wire.MemberBeatReply) error {
	return &moraine.Error{Op: "metadata.Run", Ref: s.cfg.Node, Kind: moraine.Fenced,
		Err: fmt.Errorf("the leader %s refuses this server: %s", reply.Id, reply.Refused)}
}

// beat tells the leader each second of this server, until ctx ends or the leader
// says that the server must not take part any more.
func (s *Server) beat(ctx context.Context) error {
	m := s.membership()
	if m == nil || s.deps.Dial == nil {
		return nil
	}
	dir, _, err := m.Directory()
	if err != nil {
		return err
	}
	for turn := 0; ctx.Err() == nil; turn++ {
		if addrs := s.beatTo(turn); len(addrs) > 0 {
			reply, err := s.tell(ctx, addrs, dir)
			if err == nil && reply.Refused != "" {
				return s.refused(reply)
			}
		}
		sleep(ctx, s.deps.Clock, beatEvery)
	}
	return nil
}

// beatTo returns where to send a beat: to the leader, or, where none is known (a
// server that waits to be added knows none), to the others in turn. Nobody where
// this server leads.
func (s *Server) beatTo(turn int) []string {
	id, here := s.store.Leader()
	switch {
	case here:
		return nil
	case id != "" && id != s.cfg.Node:
		return s.addresses(id)
	}
	others := slices.Clone(s.cfg.Peers)
	for _, m := range s.reachable() { // which may be others than those of its start
		others = append(others, Peer{ID: m.Id, Addresses: m.Addresses})
	}
	others = slices.DeleteFunc(others, func(p Peer) bool { return p.ID == s.cfg.Node })
	if len(others) == 0 {
		return nil
	}
	return others[turn%len(others)].Addresses
}

// addresses returns where clients reach a metadata server: where the settings
// say, or else the log.
func (s *Server) addresses(id string) []string {
	if p, ok := s.peers[id]; ok {
		return p.Addresses
	}
	for _, m := range s.store.Members() {
		if m.ID == id {
			return m.Addresses
		}
	}
	return nil
}

// memberBeat answers a beat: the leader judges it, any other server says how far
// its group has come, and who leads.
func (s *Server) memberBeat(ctx context.Context, c *call) (*wire.MetaResponse, error) {
	reply := &wire.MemberBeatReply{Id: s.cfg.Node}
	if l := s.leader.Load(); l != nil {
		if err := l.judgeBeat(ctx, c.req.GetMemberBeat(), reply); err != nil {
			return nil, err
		}
	}
	if m := s.membership(); m != nil {
		reply.Fresh = !m.Begun()
	}
	reply.Leader, _ = s.store.Leader()
	reply.LeaderAddresses = s.addresses(reply.Leader)
	return &wire.MetaResponse{Result: &wire.MetaResponse_MemberBeat{MemberBeat: reply}}, nil
}

// errNoMembership is the answer where a store has no Membership.
var errNoMembership = &moraine.Error{Kind: moraine.Unimplemented, Err: errors.New("the members of this cluster cannot change")}

// notLeading is the answer of a server that has just given up its leadership.
func (s *Server) notLeading() error {
	id, here := s.store.Leader()
	if id == "" || here || id == s.cfg.Node {
		return &moraine.Error{Kind: moraine.NotLeader, Err: errors.New("the leadership is being handed over")}
	}
	return &moraine.Error{Kind: moraine.NotLeader, Err: &transport.LeaderHint{ID: id, Addresses: s.addresses(id)}}
}

// reachable says where all metadata servers are: so that a client that knows one
// of them comes to know the others.
func (s *Server) reachable() []*wire.MemberAddress {
	var out []*wire.MemberAddress
	for _, m := range s.store.Members() {
		if addrs := s.addresses(m.ID); len(addrs) > 0 {
			out = append(out, &wire.MemberAddress{Id: m.ID, Addresses: addrs})
		}
	}
	return out
}
