// Package members knows the metadata servers of a cluster. It knows which are
// members of the Raft group, and what each reports about itself. It decides
// which may be added, get a vote, or be removed.
//
// A new server sends a beat, a report about itself, each second.
// Group.JudgeBeat decides whether it may take part, and records its report. An
// administrator adds it (AddMember) as a member without a vote. TendMembers, a
// part of each tick, gives it a vote once it has caught up. A Group lives as
// long as one leadership; the member list itself is in the log.
package members

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// caughtUp is how many entries a member may lack and still get a vote: the entries of some
// milliseconds.
const caughtUp = 256

// errNoMembership answers if the store has no Membership.
var errNoMembership = &moraine.Error{Kind: moraine.Unimplemented, Err: errors.New("the members of this cluster cannot change")}

// Server is what the group needs from the leading server.
type Server interface {
	// Membership and Seating are nil if the store has none.
	Membership() lead.Membership
	Seating() lead.Seating
	// MemberStatus is this server's own view of itself. Addresses are where clients connect to a
	// metadata server.
	MemberStatus() *wire.MemberStatus
	Addresses(id string) []string
	// Incarnation is the incarnation of this server's directory, as far as known. OutlivedBy stops
	// this server if a newer incarnation exists.
	Incarnation() moraine.MarkedIncarnation
	OutlivedBy(reported moraine.MarkedIncarnation, who string)
	// NotLeading is the answer of a server that has just transferred its leadership.
	NotLeading() error
	// SawCertificate records the certificate of a connection.
	SawCertificate(peer *transport.Peer)
	// Describe adds this leader's pending work to a reply.
	Describe(reply *wire.MembersReply)
}

// Group is one leadership's knowledge of the metadata servers.
type Group struct {
	*lead.Term
	server Server
	news   *memberNews
	// fullDisks: the disks of so many metadata servers are nearly full that the others are no
	// majority.
	fullDisks atomic.Bool
	seated    bool // this server's directory is recorded; only the tick uses it
}

// New makes the group of a leadership that has received nothing from any server yet.
func New(t *lead.Term, server Server) *Group {
	return &Group{Term: t, server: server, news: newMemberNews()}
}

// GetMembers describes all metadata servers.
func (g *Group) GetMembers(ctx context.Context, _ *lead.Call) (*wire.MetaResponse, error) {
	if err := g.Store.ReadBarrier(ctx); err != nil {
		return nil, err
	}
	return g.membersReply()
}

func (g *Group) membersReply() (*wire.MetaResponse, error) {
	now := g.Clock.Now()
	own := g.server.MemberStatus()
	reply := &wire.MembersReply{Cluster: g.Cluster.UUID[:], Term: g.Store.Term(), Commit: own.Commit,
		LeadershipMillis: uint64(now.Sub(g.Began).Milliseconds())}
	g.server.Describe(reply)
	there := map[string]bool{}
	for _, m := range g.Store.Members() {
		there[m.ID] = true
		w := &wire.Member{Id: m.ID, Addresses: g.server.Addresses(m.ID), Voter: m.Voter, Leader: m.Leader, Alive: m.Alive,
			Match: m.Match, ContactMillis: lead.Millis(m.Contact)}
		if h, ok := g.news.of(m.ID, now); ok {
			w.Status = h.status
		}
		if m.ID == g.Node {
			w.Status, w.Match, w.Alive, w.ContactMillis = own, own.LogLast, true, 0
		}
		if own.Commit > w.Match {
			w.Lag = own.Commit - w.Match
		}
		if ms := g.server.Membership(); ms != nil && !m.Voter {
			w.Why = g.whyNoVote(ms, m, now)
		}
		reply.Members = append(reply.Members, w)
	}
	for _, id := range g.news.ids(now) {
		if h, ok := g.news.of(id, now); ok && !there[id] {
			reply.Members = append(reply.Members, &wire.Member{Id: id, Waiting: true, Alive: true, Status: h.status})
		}
	}
	slices.SortFunc(reply.Members, func(a, b *wire.Member) int { return cmp.Compare(a.Id, b.Id) })
	err := g.Store.View(func(r kvtx.Reader, _ uint64) error {
		info, err := kvtx.Cluster(g.Machine.View(r))
		if err != nil {
			return err
		}
		reply.Incarnation, reply.FeatureLevel = uint64(info.Incarnation), info.FeatureLevel
		for _, m := range reply.Members {
			if _, m.Seated, err = fleet.Member(g.Machine.View(r), m.Id); err != nil {
				return err
			}
		}
		if ms := g.server.Membership(); ms != nil && ms.Settled() {
			// A recently removed server is not shown as waiting to be added.
			reply.Members = slices.DeleteFunc(reply.Members, func(m *wire.Member) bool { return m.Waiting && m.Seated })
		}
		return nil
	})
	return &wire.MetaResponse{Result: &wire.MetaResponse_Members{Members: reply}}, err
}

// TendMembers records this server's own directory, and gives a vote to members that have caught up.
// Each tick calls it.
func (g *Group) TendMembers(ctx context.Context, now time.Time) error {
	m := g.server.Membership()
	if m == nil {
		return nil
	}
	if err := g.seatSelf(ctx); err != nil {
		return err
	}
	for _, member := range g.Store.Members() {
		if member.Voter || g.whyNoVote(m, member, now) != "" {
			continue
		}
		if err := m.AddMember(ctx, member.ID, member.Addresses[0], true); err != nil {
			return err
		}
		g.Log.Info("a metadata server has caught up, and votes", "member", member.ID)
	}
	return nil
}

func (g *Group) seatSelf(ctx context.Context) error {
	m := g.server.Seating()
	if g.seated || m == nil {
		return nil
	}
	seat, err := m.Seat()
	if err != nil {
		return err
	}
	dir := seat.DataID
	have, known, _, err := g.seatOf(g.Node)
	if err != nil {
		return err
	}
	if known && have != dir {
		g.Log.Error("this leader's --data is not the one that the state records for it")
	}
	if !known {
		if err := g.setMember(ctx, g.Node, dir); err != nil {
			return err
		}
	}
	g.seated = true
	return nil
}

// whyNoVote says why a member without a vote gets none now; "" if it gets one.
func (g *Group) whyNoVote(m lead.Membership, member lead.Member, now time.Time) string {
	_, known, info, err := g.seatOf(member.ID)
	own := m.MemberStatus()
	h, reported := g.news.of(member.ID, now)
	switch {
	case err != nil:
		return wire.Text(err.Error(), wire.MaxText)
	case !member.Alive || len(member.Addresses) == 0:
		return "it does not answer: is it started, with --join?"
	case !reported:
		return "it has not reported its state yet"
	case h.status.GetLevel() < info.FeatureLevel:
		return fmt.Sprintf("its build supports feature level %d, but the cluster has level %d", h.status.GetLevel(), info.FeatureLevel)
	case !known:
		return "its --data is not recorded yet"
	case member.Match+caughtUp < own.LogLast:
		return fmt.Sprintf("it lacks %d of %d entries", own.LogLast-member.Match, own.LogLast)
	}
	return ""
}
