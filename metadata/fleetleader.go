package metadata

import (
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// fleetLeader is the part of the leader that the fleet uses. It implements fleet.Leader.
type fleetLeader struct {
	server   *Server
	sessions *sessions
	tokens   *signer
	space    func() bool
	repairs  lead.Poke
}

func (f fleetLeader) Incarnation() moraine.MarkedIncarnation { return f.server.ownIncarnation() }

func (f fleetLeader) OutlivedBy(reported moraine.MarkedIncarnation, who string) {
	f.server.outlivedBy(reported, who)
}

func (f fleetLeader) Reachable() []*wire.MemberAddress { return f.server.reachable() }

func (f fleetLeader) Keys() []*wire.SigningKey { return f.tokens.public() }

func (f fleetLeader) Revoked() *transport.Revocations { return f.server.revoked.Load() }

func (f fleetLeader) OutOfSpace() bool { return f.space() }

func (f fleetLeader) Gateways() map[string]time.Time { return f.sessions.gateways() }

func (f fleetLeader) RepairsChanged() { f.repairs.Set() }
