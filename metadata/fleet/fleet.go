// Package fleet is what the leader knows of hosts and their devices, and of the buckets that
// hosts serve: which are registered, which answer, how full and how fast they are, and who
// can be called.
//
// The path of a heartbeat: Fleet.Heartbeat waits for a ReadBarrier, which proves that this
// server leads -> Topology.NoteHeartbeat takes in what the host says of its devices (topology.go)
// -> the answer carries what the host is to delete (heartbeat.go, horizon.go), which servers it
// is to call and report on (endpoints.go), and which objects it is to compare (objectcheck.go).
// Once a second JudgeHosts finds the hosts that fell silent or came back, publishes a new View,
// and proposes the changes of their devices' states. All others read the present View.
//
// The registered hosts and the states of devices are in the replicated state; what is only here
// is lost with the leadership, and heard again within a heartbeat interval.
package fleet

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// Config is what an operator may set of it; metadata.Config says what each is.
type Config struct {
	Suspect, Grace, RepairGrace time.Duration
	SlowTimes                   int
	BackupHorizon               time.Duration
	SharesDisk                  bool
	// Expires is when the certificate of this server expires; nil: the servers have none.
	Expires func() time.Time
}

// Leader is what the fleet asks of the server that leads.
type Leader interface {
	// Incarnation is what this server's directory is of, as far as is known, and
	// OutlivedBy ends this server where another one outlives that.
	Incarnation() moraine.MarkedIncarnation
	OutlivedBy(reported moraine.MarkedIncarnation, who string)
	// Reachable says where all metadata servers are.
	Reachable() []*wire.MemberAddress
	// Keys are the public keys that check session tokens.
	Keys() []*wire.SigningKey
	// Revoked are the certificates that are not taken any more.
	Revoked() *transport.Revocations
	// OutOfSpace reports whether nothing may grow.
	OutOfSpace() bool
	// Gateways are the certificates of gateways that have sessions: when each expires.
	Gateways() map[string]time.Time
	// RepairsChanged says that what can be repaired may have changed.
	RepairsChanged()
}

// Fleet is what one leadership knows of the hosts, their devices and their buckets.
type Fleet struct {
	*lead.Term
	cfg    Config
	leader Leader

	Topology      *topology
	endpoints     *endpoints
	bucketHealths *bucketHealths
	Traits        bucketTraits // of buckets that movers have probed
	Certificates  *certificates
	Objects       *ObjectChecks
	absences      *absences
	Horizon       *Horizon
	scrubs        scrubs
	claims        claims

	HostsRead lead.Poke  // Hosts or devices in the state changed
	hostsLoad sync.Mutex // a read of the hosts and its takeover are one step
	// allReported: every device has reported since the metadata was restored.
	allReported atomic.Bool
}

// New makes the memory of a leadership that has not heard of any host yet.
func New(t *lead.Term, cfg Config, leader Leader) *Fleet {
	topology := NewTopology(t.Store.Term(), cfg.Suspect)
	return &Fleet{
		Term: t, cfg: cfg, leader: leader, Topology: topology, endpoints: newEndpoints(t.Store.Term()), bucketHealths: newBucketHealths(),
		Certificates: newCertificates(), Objects: newObjectChecks(t, topology), absences: newAbsences(t, topology),
		Horizon: &Horizon{Term: t, cfg: cfg, topology: topology, leader: leader}, HostsRead: lead.NewPoke(),
	}
}

// mark is that of the incarnation, as messages have it.
func (f *Fleet) mark() []byte { return transport.MarkBytes(f.leader.Incarnation()) }

// GetTopology answers with the topology of now.
func (f *Fleet) GetTopology(ctx context.Context, _ *lead.Call) (*wire.MetaResponse, error) {
	if err := f.Store.ReadBarrier(ctx); err != nil {
		return nil, err
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Topology{Topology: f.Topology.View().Wire}}, nil
}

// MemberEndpoint is what hosts found when they called a metadata server.
func (f *Fleet) MemberEndpoint(id string) *wire.EndpointHealth {
	return f.endpoints.health(server{transport.RoleMetadata, id}, f.Clock.Now())
}
