package metadata

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/fleet"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// membersServer is the part of the leading server that the group of members uses. It implements
// members.Server.
type membersServer struct {
	*Server
	sessions *sessions
	fleet    *fleet.Fleet
}

func (m membersServer) Membership() lead.Membership { return m.membership() }

func (m membersServer) Seating() lead.Seating { return m.seating() }

func (m membersServer) MemberStatus() *wire.MemberStatus { return m.memberStatus() }

func (m membersServer) Addresses(id string) []string { return m.addresses(id) }

func (m membersServer) Incarnation() moraine.MarkedIncarnation { return m.ownIncarnation() }

func (m membersServer) OutlivedBy(reported moraine.MarkedIncarnation, who string) {
	m.outlivedBy(reported, who)
}

func (m membersServer) NotLeading() error { return m.notLeading() }

func (m membersServer) SawCertificate(peer *transport.Peer) {
	m.fleet.Certificates.Saw(peer, m.deps.Clock.Now())
}

func (m membersServer) Describe(reply *wire.MembersReply) {
	reply.Sessions, reply.Leases, reply.Commands = uint64(m.sessions.count()), uint64(m.lease.Count()), m.ops.mix()
}
