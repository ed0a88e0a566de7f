package members

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// maxVoters bounds the servers of a cluster, because each additional one makes every change
	// slower.
	maxVoters = 9
	// settlePatience bounds how long a removal waits for answers of the other servers. A new leader
	// has not received one from all of them yet.
	settlePatience = 2 * time.Second
	settleStep     = 50 * time.Millisecond
)

// AddMember adds a server as a member without a vote. TendMembers gives it a vote later.
func (g *Group) AddMember(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	m := g.server.Membership()
	if m == nil {
		return nil, errNoMembership
	}
	if err := g.Store.ReadBarrier(ctx); err != nil {
		return nil, err
	}
	asked := c.Req.GetAddMember()
	there, err := g.mayAdd(asked)
	if err != nil {
		return nil, err
	}
	if !there {
		if err := m.AddMember(ctx, asked.Id, asked.Address, false); err != nil {
			return nil, err
		}
		g.Log.Info("a metadata server joined; it gets a vote when it has caught up", "member", asked.Id, "address", asked.Address)
	}
	return g.membersReply()
}

// mayAdd refuses a server that must not be added; there says that it is a member already.
func (g *Group) mayAdd(asked *wire.AddMember) (there bool, err error) {
	bad := func(kind moraine.Kind, format string, args ...any) error {
		return &moraine.Error{Op: "add metadata server", Ref: asked.Id, Kind: kind, Err: fmt.Errorf(format, args...)}
	}
	if asked.Id == "" || len(asked.Id) > 255 || !isAddress(asked.Address) {
		return false, bad(moraine.InvalidArgument, "the request needs an id, and an address as HOST:PORT or unix:PATH")
	}
	members := g.Store.Members()
	for _, m := range members {
		same := slices.Contains(m.Addresses, asked.Address)
		switch {
		case m.ID == asked.Id && same:
			return true, nil
		case m.ID == asked.Id && !m.Voter:
			return false, bad(moraine.Exists, "the server is a member at %s without a vote: to correct the address, `moraine metadata remove %s`, and add it again", strings.Join(m.Addresses, ", "), m.ID)
		case m.ID == asked.Id:
			return false, bad(moraine.Exists, "the server is a member at %s: to change its address, edit --peers of all servers and restart one after the other", strings.Join(m.Addresses, ", "))
		case same:
			return false, bad(moraine.Exists, "server %s already has address %s", m.ID, asked.Address)
		}
	}
	_, known, info, err := g.seatOf(asked.Id)
	switch {
	case err != nil:
		return false, err
	case known:
		return false, bad(moraine.Exists, "a former member had this id, which belongs to its --data directory for ever: choose an id that was never used")
	case len(members) >= maxVoters:
		return false, bad(moraine.TooLarge, "the cluster has %d servers, %d at most: remove one first", len(members), maxVoters)
	}
	if h, reported := g.news.of(asked.Id, g.Clock.Now()); reported && h.status.GetLevel() < info.FeatureLevel {
		return false, bad(moraine.NewerFormat, "the build of the server supports feature level %d, but the cluster has level %d: start a newer build", h.status.GetLevel(), info.FeatureLevel)
	}
	return false, nil
}

// isAddress reports whether other servers could connect to addr.
func isAddress(addr string) bool {
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		return path != ""
	}
	if strings.HasPrefix(addr, "mem:") { // an address of memnet, for tests
		return true
	}
	host, port, err := net.SplitHostPort(addr)
	n, bad := strconv.ParseUint(port, 10, 16)
	return err == nil && host != "" && bad == nil && n > 0
}

// RemoveMember removes a server, unless the others could not continue without it. If it is this
// server, it transfers the leadership instead, and the caller repeats the request at the next
// leader.
func (g *Group) RemoveMember(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	m := g.server.Membership()
	if m == nil {
		return nil, errNoMembership
	}
	if err := g.Store.ReadBarrier(ctx); err != nil {
		return nil, err
	}
	id := c.Req.GetRemoveMember().GetId()
	member, there := g.member(id)
	if !there {
		_, known, _, err := g.seatOf(id)
		if err == nil && !known {
			err = &moraine.Error{Op: "remove metadata server", Ref: id, Kind: moraine.NotFound, Err: errors.New("no such server: see moraine metadata ls")}
		}
		if err != nil {
			return nil, err
		}
		return g.membersReply() // it was removed earlier, and the answer was lost
	}
	if member.Voter {
		if err := g.awaitRest(ctx, id); err != nil {
			return nil, err
		}
	}
	if id == g.Node {
		if err := g.handTo(ctx, m); err != nil {
			return nil, err
		}
		return nil, g.server.NotLeading()
	}
	if err := m.RemoveMember(ctx, id); err != nil {
		return nil, err
	}
	g.Log.Info("a metadata server was removed", "member", id)
	return g.membersReply()
}

// awaitRest fails unless the voters other than id form a majority that is up. A new leader waits a
// moment for their answers.
func (g *Group) awaitRest(ctx context.Context, id string) error {
	deadline := g.Clock.Now().Add(settlePatience)
	for {
		err := restGoesOn(g.Store.Members(), id, g.Node)
		if err == nil || g.Clock.Now().After(deadline) || ctx.Err() != nil {
			return err
		}
		lead.Sleep(ctx, g.Clock, settleStep)
	}
}

// restGoesOn fails if the voters other than id could not form a majority. self counts as up.
func restGoesOn(members []lead.Member, id, self string) error {
	rest, up := 0, 0
	var down []string
	for _, m := range members {
		if !m.Voter || m.ID == id {
			continue
		}
		rest++
		if m.Alive || m.ID == self {
			up++
		} else {
			down = append(down, m.ID)
		}
	}
	bad := func(format string, args ...any) error {
		return &moraine.Error{Op: "remove metadata server", Ref: id, Kind: moraine.Conflict, Err: fmt.Errorf(format, args...)}
	}
	switch {
	case rest == 0:
		return bad("the server is the last one with a vote: add another one first")
	case up <= rest/2:
		return bad("only %[2]d of the %[1]d remaining servers answer, which is no majority: start %[3]s, or add another server first", rest, up, strings.Join(down, ", "))
	}
	return nil
}

// handTo transfers the leadership to the voter with the longest log.
func (g *Group) handTo(ctx context.Context, m lead.Membership) error {
	best := lead.Member{}
	for _, o := range g.Store.Members() {
		if o.Voter && o.Alive && o.ID != g.Node && (best.ID == "" || o.Match > best.Match) {
			best = o
		}
	}
	if best.ID == "" {
		return &moraine.Error{Op: "remove metadata server", Ref: g.Node, Kind: moraine.Conflict, Err: errors.New("no other server can lead")}
	}
	return m.Transfer(ctx, best.ID)
}
