package members

import (
	"context"
	"errors"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// JudgeBeat decides whether the server that sent a beat may take part. It records the server's
// directory if the server is a member whose directory is not known yet.
func (g *Group) JudgeBeat(ctx context.Context, beat *wire.MemberBeat, reply *wire.MemberBeatReply) error {
	if beat.Id == "" || len(beat.DataId) != len(moraine.UUID{}) {
		return &moraine.Error{Kind: moraine.InvalidArgument, Err: errors.New("the request needs the id of a server and the id of its --data")}
	}
	if err := g.Store.ReadBarrier(ctx); err != nil {
		return err
	}
	dir := moraine.UUID(beat.DataId)
	own, theirs := g.server.Incarnation(), transport.MarkedIncarnation(beat.Incarnation, beat.Mark)
	if theirs.Outlives(own) && own.Number != 0 {
		g.server.OutlivedBy(theirs, "the metadata server "+beat.Id)
		return &moraine.Error{Kind: moraine.Unavailable, Err: errors.New("this server was removed, or has an abandoned incarnation: ignore its answers")}
	}
	if theirs.Differs(own) {
		reply.Refused = fmt.Sprintf("its --data is of incarnation %v of the metadata, and this cluster is at %v: a restore or a forced quorum began that without it. "+
			"Put its --data aside, and start a server on an empty one under an id that was never used", theirs, own)
		return nil
	}
	have, known, info, err := g.seatOf(beat.Id)
	if err != nil {
		return err
	}
	_, member := g.member(beat.Id)
	m := g.server.Membership()
	switch {
	case known && have != dir:
		reply.Refused = wipedText(beat.Id)
		return nil
	case known && !member && m != nil && m.Settled():
		reply.Refused = fmt.Sprintf("%s was removed from the cluster: end it; its --data is of no use any more", beat.Id)
		return nil
	case beat.Status.GetLevel() < info.FeatureLevel:
		reply.Refused = fmt.Sprintf("its build supports feature level %d, but the cluster has level %d: start %s with a newer build", beat.Status.GetLevel(), info.FeatureLevel, beat.Id)
		return nil
	case member && !known:
		if err := g.setMember(ctx, beat.Id, dir); err != nil {
			return err
		}
	}
	if peer := transport.PeerFrom(ctx); peer != nil && peer.Node == beat.Id {
		g.server.SawCertificate(peer)
	}
	g.news.note(beat.Id, memberReport{status: beat.Status, dataID: dir, at: g.Clock.Now()}, g.Store.Members)
	g.countFullDisks()
	reply.Accepted = true
	return nil
}

func wipedText(id string) string {
	return fmt.Sprintf("server %[1]s was a member with another --data: start it on an empty --data under a new id (say %[1]sb), "+
		"with --join and --peers, then run moraine metadata replace %[1]s %[1]sb=HOST:PORT", id)
}

func (g *Group) setMember(ctx context.Context, id string, dir moraine.UUID) error {
	_, err := g.Command(ctx, &statepb.Command{Op: &statepb.Command_SetMember{
		SetMember: &statepb.SetMember{Id: id, DataId: dir[:]}}})
	return err
}

// seatOf reads the directory that the state has for a server.
func (g *Group) seatOf(id string) (dir moraine.UUID, known bool, info kvtx.ClusterInfo, err error) {
	err = g.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
		if info, err = kvtx.Cluster(g.Machine.View(r)); err != nil {
			return err
		}
		dir, known, err = fleet.Member(g.Machine.View(r), id)
		return err
	})
	return dir, known, info, err
}

func (g *Group) member(id string) (lead.Member, bool) {
	for _, m := range g.Store.Members() {
		if m.ID == id {
			return m, true
		}
	}
	return lead.Member{}, false
}
