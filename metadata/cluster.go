package metadata

import (
	"context"

	"github.com/morainefs/moraine/metadata/fleet"
	"github.com/morainefs/moraine/metadata/lead"
	statefleet "github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	statesession "github.com/morainefs/moraine/metadata/state/session"
	"github.com/morainefs/moraine/transport/wire"
)

// getCluster answers the status of the cluster: the state's counts, and what only this leader
// knows.
func (l *leader) getCluster(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	asked := l.fleet.Ask(c.Req.GetGetCluster().GetFresh())
	// A server that is the only voter and waits for its disk answers without a barrier, which would
	// wait too. No other server can lead, so that its state is the newest one.
	if l.server.store.Healthy() == nil {
		if err := l.Store.ReadBarrier(ctx); err != nil {
			return nil, err
		}
	}
	if err := l.fleet.AwaitFill(ctx); err != nil {
		return nil, err
	}
	if err := l.fleet.AwaitReports(ctx, asked); err != nil {
		return nil, err
	}
	reply := &wire.ClusterReply{}
	v := l.fleet.Topology.View()
	topology := v.Wire
	err := l.Store.View(func(r kvtx.Reader, applied uint64) (err error) {
		reply.Metadata = l.nodes(asked, applied)
		if topology, err = l.fleet.CountDraining(r, topology); err != nil {
			return err
		}
		return l.count(r, reply)
	})
	if err != nil {
		return nil, err
	}
	whole := c.Caller.Scope == "/"
	reply.Certificates = l.fleet.CertificatesNow(v, whole)
	if !whole {
		reply.Check.Found = nil // it may reveal what the caller may not see
	}
	reply.Topology, reply.DefaultScheme = l.fleet.Topology.ReportedSince(asked, l.fleet.MarkEndpoints(l.markRevoked(topology))), wire.SchemeToWire(v.DefaultScheme())
	return &wire.MetaResponse{Result: &wire.MetaResponse_Cluster{Cluster: reply}}, nil
}

// count adds the state's counts.
func (l *leader) count(r kvtx.Reader, reply *wire.ClusterReply) error {
	info, err := kvtx.Cluster(l.Machine.View(r))
	if err != nil {
		return err
	}
	n, err := kvtx.ReadCounters(l.Machine.View(r))
	if err != nil {
		return err
	}
	reply.Cluster, reply.Incarnation, reply.FeatureLevel = info.UUID[:], uint64(info.Incarnation), info.FeatureLevel
	if reply.RoutingEpoch, err = statesession.RoutingEpoch(l.Machine.View(r)); err != nil {
		return err
	}
	reply.ClusterTimeMillis, reply.Commands, reply.Entries = n.ClusterTime, n.Commands, n.Entries
	reply.Sessions, reply.Inodes, reply.Stripes = n.Sessions, n.Inodes, n.Stripes
	reply.RepairQueued, reply.LostStripes = n.RepairQueued, n.LostStripes
	reply.LeakedBytes, reply.StuckMoves = n.LeakedBytes, n.StuckMoves
	reply.InlineFiles, reply.InlineBytes = n.InlineFiles, n.InlineBytes
	if err := l.fleet.Horizon.CountKept(r, n, reply); err != nil {
		return err
	}
	unreported, err := statefleet.Unreported(l.Machine.View(r))
	if err != nil {
		return err
	}
	reply.Unreported = uint64(unreported)
	if reply.RepairRunning, err = statefleet.RepairHopeful(l.Machine.View(r)); err != nil {
		return err
	}
	if reply.StripesBySpare, err = statefleet.StripesBySpare(l.Machine.View(r)); err != nil {
		return err
	}
	reply.Backups, reply.Check = l.backups.keptBackups(), l.checks.stateCheck()
	ended, err := statefleet.EndedGrants(l.Machine.View(r), maxEndedCounted)
	if err != nil {
		return err
	}
	reply.EndedGrants = uint64(ended)
	if reply.LostObjects, reply.BadObjects, err = l.fleet.Objects.CountBad(r); err != nil {
		return err
	}
	reply.Insecure = l.deps.Expires == nil
	if reply.Buckets, err = l.fleet.BucketStatus(r); err != nil {
		return err
	}
	return l.repair.Describe(r, reply.RepairQueued, reply)
}

// nodes describes the metadata servers from this server's view.
func (l *leader) nodes(asked fleet.Asked, applied uint64) []*wire.MetadataNode {
	s := l.server
	members := s.store.Members()
	out := make([]*wire.MetadataNode, len(members))
	for i, m := range members {
		p := Peer{Addresses: s.addresses(m.ID), AdminAddress: s.peers[m.ID].AdminAddress}
		out[i] = &wire.MetadataNode{
			Id: m.ID, Addresses: p.Addresses, AdminAddress: p.AdminAddress,
			Leader: m.Leader, Voter: m.Voter, Applied: m.Match, Alive: m.Alive,
			LowSpace: l.members.LowSpaceOf(m.ID), Seen: l.fleet.MemberKnown(&m, asked),
			Endpoint: l.fleet.MemberEndpoint(m.ID),
		}
		if m.ID == s.cfg.Node {
			out[i].Applied, out[i].Alive, out[i].Seen = applied, true, true
			if err := s.store.Healthy(); err != nil {
				out[i].Stalled = err.Error()
			}
		}
	}
	return out
}

// Status is a server's description of itself, for administrators and health checks.
type Status struct {
	Node    string
	Leader  string // ID of the leading node; "" if unknown
	Leading bool
	Term    uint64
	Applied uint64
	// The following fields are known only if this server leads.
	Sessions, Hosts, LiveHosts int
}

// Status describes the server. It may be called while Run is running.
func (s *Server) Status() Status {
	st := Status{Node: s.cfg.Node, Term: s.store.Term()}
	st.Leader, _ = s.store.Leader()
	_ = s.store.View(func(_ kvtx.Reader, applied uint64) error { st.Applied = applied; return nil })
	if l := s.leader.Load(); l != nil {
		v := l.fleet.Topology.View()
		st.Leading, st.Sessions, st.Hosts, st.LiveHosts = true, l.sessions.count(), len(v.Wire.Hosts), v.Live
	}
	return st
}

// Healthy returns why this server cannot work, or nil. It can if its store works and it leads or
// knows the leader.
func (s *Server) Healthy() error {
	if err := s.store.Healthy(); err != nil {
		return err
	}
	if s.leader.Load() != nil {
		return nil
	}
	if id, here := s.store.Leader(); id == "" || here {
		return s.notLeader()
	}
	return nil
}
