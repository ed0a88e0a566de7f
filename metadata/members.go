package metadata

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/transport/wire"
)

// caughtUp is how many entries a member may lack and still be given a vote:
// what comes in within some milliseconds.
const caughtUp = 256

// getMembers describes all metadata servers.
func (l *leader) getMembers(ctx context.Context, _ *lead.Call) (*wire.MetaResponse, error) {
	if err := l.Store.ReadBarrier(ctx); err != nil {
		return nil, err
	}
	return l.membersReply()
}

func (l *leader) membersReply() (*wire.MetaResponse, error) {
	now := l.Clock.Now()
	own := l.server.memberStatus()
	reply := &wire.MembersReply{Cluster: l.Cluster.UUID[:], Term: l.Store.Term(), Commit: own.Commit,
		Sessions: uint64(l.sessions.count()), Leases: uint64(l.lease.Count()), LeadershipMillis: uint64(now.Sub(l.Began).Milliseconds()), Commands: l.server.ops.mix()}
	there := map[string]bool{}
	for _, m := range l.Store.Members() {
		there[m.ID] = true
		w := &wire.Member{Id: m.ID, Addresses: l.server.addresses(m.ID), Voter: m.Voter, Leader: m.Leader, Alive: m.Alive,
			Match: m.Match, ContactMillis: millis(m.Contact)}
		if h, ok := l.news.of(m.ID, now); ok {
			w.Status = h.status
		}
		if m.ID == l.Node {
			w.Status, w.Match, w.Alive, w.ContactMillis = own, own.LogLast, true, 0
		}
		if own.Commit > w.Match {
			w.Lag = own.Commit - w.Match
		}
		if ms := l.server.membership(); ms != nil && !m.Voter {
			w.Why = l.whyNoVote(ms, m, now)
		}
		reply.Members = append(reply.Members, w)
	}
	for _, id := range l.news.ids(now) {
		if h, ok := l.news.of(id, now); ok && !there[id] {
			reply.Members = append(reply.Members, &wire.Member{Id: id, Waiting: true, Alive: true, Status: h.status})
		}
	}
	slices.SortFunc(reply.Members, func(a, b *wire.Member) int { return cmp.Compare(a.Id, b.Id) })
	err := l.Store.View(func(r state.Reader, _ uint64) error {
		info, err := l.Machine.Cluster(r)
		if err != nil {
			return err
		}
		reply.Incarnation, reply.FeatureLevel = uint64(info.Incarnation), info.FeatureLevel
		for _, m := range reply.Members {
			if _, m.Seated, err = l.Machine.Member(r, m.Id); err != nil {
				return err
			}
		}
		if ms := l.server.membership(); ms != nil && ms.Settled() {
			// A server that was removed a moment ago does not wait to be added.
			reply.Members = slices.DeleteFunc(reply.Members, func(m *wire.Member) bool { return m.Waiting && m.Seated })
		}
		return nil
	})
	return &wire.MetaResponse{Result: &wire.MetaResponse_Members{Members: reply}}, err
}

// tendMembers records this server's own directory, and gives a vote to members
// that have caught up. It is part of a tick.
func (l *leader) tendMembers(ctx context.Context, now time.Time) error {
	m := l.server.membership()
	if m == nil {
		return nil
	}
	if err := l.seatSelf(ctx); err != nil {
		return err
	}
	for _, member := range l.Store.Members() {
		if member.Voter || l.whyNoVote(m, member, now) != "" {
			continue
		}
		if err := m.AddMember(ctx, member.ID, member.Addresses[0], true); err != nil {
			return err
		}
		l.Log.Info("a metadata server has caught up, and votes", "member", member.ID)
	}
	return nil
}

func (l *leader) seatSelf(ctx context.Context) error {
	m := l.server.seating()
	if l.seated || m == nil {
		return nil
	}
	seat, err := m.Seat()
	if err != nil {
		return err
	}
	dir := seat.DataID
	have, known, info, err := l.seatOf(l.Node)
	if err != nil || info.FeatureLevel < state.LevelMembers {
		return err
	}
	if known && have != dir {
		l.Log.Error("this server leads with a --data that is not the one recorded for it")
	}
	if !known {
		if err := l.setMember(ctx, l.Node, dir); err != nil {
			return err
		}
	}
	l.seated = true
	return nil
}

// whyNoVote says why a member that has no vote is given none now; "" where it is.
func (l *leader) whyNoVote(m lead.Membership, member lead.Member, now time.Time) string {
	_, known, info, err := l.seatOf(member.ID)
	own := m.MemberStatus()
	h, heard := l.news.of(member.ID, now)
	switch {
	case err != nil:
		return wire.Text(err.Error(), wire.MaxText)
	case !member.Alive || len(member.Addresses) == 0:
		return "it does not answer: is it started, with --join?"
	case !heard:
		return "it has not told of itself yet"
	case h.status.GetLevel() < info.FeatureLevel:
		return fmt.Sprintf("its build speaks feature level %d, the cluster is at %d", h.status.GetLevel(), info.FeatureLevel)
	case !known && info.FeatureLevel >= state.LevelMembers:
		return "its --data is not recorded yet"
	case member.Match+caughtUp < own.LogLast:
		return fmt.Sprintf("it lacks %d of %d entries", own.LogLast-member.Match, own.LogLast)
	}
	return ""
}
