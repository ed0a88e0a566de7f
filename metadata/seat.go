package metadata

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// A server's seat is its ID together with its --data directory, which has a
// random name, its data ID. Raft relies on what a member acknowledged and how
// it voted. So a server that lost its disk must not take part under its former
// ID. With a lagging server it could form a majority that lacks acknowledged
// entries. The state records for ever which directory each ID has (SetMember).
// A new directory needs permission before it takes part for the first time
// (enter). Later the server reports each second who it is (beat), and what its
// build supports.

const (
	// beatTimeout bounds one such request.
	beatTimeout = 2 * time.Second
	// enterRetry is the pause before a server that may not enter yet asks again.
	enterRetry = 200 * time.Millisecond
	// enterPatience is the time after which a waiting server logs that it waits.
	enterPatience = 5 * time.Second
)

// membership returns the store's Membership; nil if its members cannot change.
func (s *Server) membership() lead.Membership {
	m, _ := s.store.(lead.Membership)
	return m
}

// seating returns the store's Seating, or nil.
func (s *Server) seating() lead.Seating {
	m, _ := s.store.(lead.Seating)
	return m
}

// ownIncarnation returns the incarnation of this server's directory, as far as known.
func (s *Server) ownIncarnation() moraine.MarkedIncarnation {
	if m := s.seating(); m != nil {
		return m.Incarnation()
	}
	return moraine.MarkedIncarnation{Number: s.Incarnation()}
}

// enter waits until this server may take part. It returns at once if the server took part before.
// Otherwise the leader must accept its directory or, at the first start of a new cluster, entry
// takes two steps. First, every other server reports that it has not entered either: this server is
// then admitted. Second, every other server is admitted too, or one has entered, which requires
// that all were admitted: this server then enters. The third server may therefore enter without the
// first two when these lead. An error means that this server must not take part.
func (s *Server) enter(ctx context.Context) error {
	m := s.seating()
	if m == nil || s.deps.Dial == nil {
		s.stage.Store(int32(wire.MemberStage_MEMBER_STAGE_ENTERED))
		return nil
	}
	seat, err := m.Seat()
	if err != nil {
		return err
	}
	began, warned := s.deps.Clock.Now(), false
	for ctx.Err() == nil {
		s.stage.Store(int32(seat.Stage()))
		if seat.Entered {
			return nil
		}
		step, err := s.askToEnter(ctx, seat)
		if err != nil {
			return err
		}
		if step.admit && !seat.Admitted {
			if err := m.Admit(step.incarnation); err != nil {
				return err
			}
			seat.Admitted = true
		}
		if step.enter {
			if err := m.Enter(); err != nil {
				return err
			}
			seat.Entered = true
		}
		if step.admit || step.enter {
			continue
		}
		if !warned && s.deps.Clock.Since(began) > enterPatience {
			warned = true
			s.deps.Log.Warn("this server has a new --data; it takes part when the leader has answered, or, at the first start, when all other servers have", "waits for", step.waitsFor)
		}
		lead.Sleep(ctx, s.deps.Clock, enterRetry)
	}
	return nil
}

// entry is what a server that wants to enter may do.
type entry struct {
	admit, enter bool
	incarnation  moraine.MarkedIncarnation // the incarnation that admits it
	waitsFor     []string
}

// askToEnter asks every other server once.
func (s *Server) askToEnter(ctx context.Context, seat lead.Seat) (e entry, err error) {
	fresh, admitted := !s.cfg.Join, seat.Admitted
	for _, p := range s.cfg.Peers {
		if p.ID == s.cfg.Node {
			continue
		}
		reply, err := s.tell(ctx, p.Addresses, seat.DataID)
		switch {
		case err != nil:
			fresh, admitted = false, false
			e.waitsFor = append(e.waitsFor, p.ID)
		case reply.Refused != "":
			return e, s.refused(reply)
		case reply.Accepted:
			return entry{admit: true, enter: true, incarnation: transport.MarkedIncarnation(reply.Incarnation, reply.Mark)}, nil
		case !reply.Fresh && seat.Admitted:
			return entry{enter: true}, nil
		case !reply.Fresh:
			fresh = false
			e.waitsFor = append(e.waitsFor, "the leader, which "+p.ID+" does not know")
		case reply.Stage == wire.MemberStage_MEMBER_STAGE_NEW:
			admitted = false
			e.waitsFor = append(e.waitsFor, p.ID+", which waits for another")
		}
	}
	e.admit, e.enter = fresh && !seat.Admitted, admitted
	return e, nil
}

// tell sends a beat to the server at addrs and, if that server names another leader, to the leader.
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
	own := s.ownIncarnation()
	beat := &wire.MemberBeat{Id: s.cfg.Node, DataId: dir[:], Status: s.memberStatus(),
		Incarnation: uint64(own.Number), Mark: transport.MarkBytes(own)}
	if s.stage.Load() == int32(wire.MemberStage_MEMBER_STAGE_ENTERED) { // before it has entered, there is no state to read
		beat.WantSecret = s.wantedSecret()
	}
	resp, err := s.deps.Dial(addrs).Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_MemberBeat{MemberBeat: beat}})
	if err != nil {
		return nil, err
	}
	reply := resp.GetMemberBeat()
	if reply == nil {
		return nil, &moraine.Error{Op: "member beat", Kind: moraine.Unimplemented}
	}
	said := transport.MarkedIncarnation(reply.Incarnation, reply.Mark)
	s.outlivedBy(said, "the metadata server "+reply.Id)
	if said.Number != 0 && own.Outlives(said) { // that server is outlived: ignore its answer and its refusal
		return nil, &moraine.Error{Op: "member beat", Ref: reply.Id, Kind: moraine.Fenced, Err: fmt.Errorf("the other server has incarnation %v, but this server has %v", said, own)}
	}
	s.takeSecret(beat.WantSecret, reply)
	return reply, nil
}

// memberStatus is this server's own view of itself.
func (s *Server) memberStatus() *wire.MemberStatus {
	st := &wire.MemberStatus{}
	if m := s.membership(); m != nil {
		st = m.MemberStatus()
	}
	st.Level, st.Release = s.machine.Level, s.cfg.Release
	return st
}

func (s *Server) refused(reply *wire.MemberBeatReply) error {
	return &moraine.Error{Op: "metadata.Run", Ref: s.cfg.Node, Kind: moraine.Fenced,
		Err: fmt.Errorf("the leader %s refuses this server: %s", reply.Id, reply.Refused)}
}

// beat reports this server to the leader each second, until ctx ends or the leader answers that the
// server must no longer take part.
func (s *Server) beat(ctx context.Context) error {
	m := s.seating()
	if m == nil || s.deps.Dial == nil {
		return nil
	}
	seat, err := m.Seat()
	if err != nil {
		return err
	}
	dir := seat.DataID
	for turn := 0; ctx.Err() == nil; turn++ {
		s.seeIncarnation(m)
		if addrs := s.beatTo(turn); len(addrs) > 0 {
			reply, err := s.tell(ctx, addrs, dir)
			if err == nil && reply.Refused != "" {
				return s.refused(reply)
			}
		}
		lead.Sleep(ctx, s.deps.Clock, lead.BeatEvery)
	}
	return nil
}

// beatTo returns the addresses for a beat: the leader's or, if none is known, the others' in turn.
// A server that waits to be added knows no leader. It returns nothing if this server leads.
func (s *Server) beatTo(turn int) []string {
	id, here := s.store.Leader()
	switch {
	case here:
		return nil
	case id != "" && id != s.cfg.Node:
		return s.addresses(id)
	}
	others := slices.Clone(s.cfg.Peers)
	for _, m := range s.reachable() { // they may differ from those at its start
		others = append(others, Peer{ID: m.Id, Addresses: m.Addresses})
	}
	others = slices.DeleteFunc(others, func(p Peer) bool { return p.ID == s.cfg.Node })
	if len(others) == 0 {
		return nil
	}
	return others[turn%len(others)].Addresses
}

// addresses returns where clients connect to a metadata server: from the settings, otherwise from
// the log.
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

// memberBeat answers a beat. The leader decides on it; any other server answers its group's
// progress and the leader.
func (s *Server) memberBeat(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	stage := wire.MemberStage(s.stage.Load())
	if stage == wire.MemberStage_MEMBER_STAGE_UNKNOWN {
		return nil, &moraine.Error{Kind: moraine.Unavailable, Err: errors.New("this server has not started yet")}
	}
	own := s.ownIncarnation()
	reply := &wire.MemberBeatReply{Id: s.cfg.Node, Stage: stage, Fresh: stage != wire.MemberStage_MEMBER_STAGE_ENTERED,
		Incarnation: uint64(own.Number), Mark: transport.MarkBytes(own)}
	if l := s.leader.Load(); l != nil {
		if err := l.members.JudgeBeat(ctx, c.Req.GetMemberBeat(), reply); err != nil {
			return nil, err
		}
	}
	s.giveSecret(c, reply)
	reply.Leader, _ = s.store.Leader()
	reply.LeaderAddresses = s.addresses(reply.Leader)
	return &wire.MetaResponse{Result: &wire.MetaResponse_MemberBeat{MemberBeat: reply}}, nil
}

// getLeader answers from memory which server this one follows. A client without an answer from a
// leader learns here whether another one leads.
func (s *Server) getLeader(context.Context, *lead.Call) (*wire.MetaResponse, error) {
	id, here := s.store.Leader()
	reply := &wire.LeaderReply{Id: id, Addresses: s.addresses(id), Term: s.store.Term(), Serving: here && s.leader.Load() != nil}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Leader{Leader: reply}}, nil
}

// getMember answers this server's own knowledge. If no server leads, nothing else can be known.
func (s *Server) getMember(context.Context, *lead.Call) (*wire.MetaResponse, error) {
	id, here := s.store.Leader()
	reply := &wire.MemberReply{Id: s.cfg.Node, Stage: wire.MemberStage(s.stage.Load()), Leader: id, Serving: here && s.leader.Load() != nil,
		Status: s.memberStatus(), Incarnation: uint64(s.ownIncarnation().Number)}
	for _, m := range s.store.Members() {
		reply.Members = append(reply.Members, &wire.Member{Id: m.ID, Addresses: s.addresses(m.ID), Voter: m.Voter})
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Member{Member: reply}}, nil
}

// notLeading is the answer of a server that has just transferred its leadership.
func (s *Server) notLeading() error {
	id, here := s.store.Leader()
	if id == "" || here || id == s.cfg.Node {
		return &moraine.Error{Kind: moraine.NotLeader, Err: errors.New("the leadership is being handed over")}
	}
	return &moraine.Error{Kind: moraine.NotLeader, Err: &transport.LeaderHint{ID: id, Addresses: s.addresses(id)}}
}

// reachable returns the addresses of all metadata servers, so that a client that knows one learns
// the others.
func (s *Server) reachable() []*wire.MemberAddress {
	var out []*wire.MemberAddress
	for _, m := range s.store.Members() {
		if addrs := s.addresses(m.ID); len(addrs) > 0 {
			out = append(out, &wire.MemberAddress{Id: m.ID, Addresses: addrs})
		}
	}
	return out
}
