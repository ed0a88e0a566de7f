// Package fleet is the leader's knowledge of hosts and their devices, and of the buckets that hosts
// serve. It knows which are registered, which are up, how full and how fast they are, and which can
// be connected to.
//
// The path of a heartbeat: Fleet.Heartbeat waits for a ReadBarrier, which proves that this server
// leads. Topology.NoteHeartbeat records what the host reports about its devices (topology.go). The
// answer says what the host must delete (heartbeat.go, horizon.go), which servers it must probe
// (endpoints.go), and which objects it must compare (objectcheck.go). Once a second JudgeHosts
// finds the hosts that became silent or returned, publishes a new View, and proposes state changes
// of their devices. All other parts read the present View.
//
// The replicated state has the registered hosts and the states of devices. Everything else is lost
// with the leadership and is reported again within a heartbeat interval.
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

// Config has the settings of the fleet; metadata.Config describes each.
type Config struct {
	Suspect, Grace, RepairGrace time.Duration
	SlowTimes                   int
	BackupHorizon               time.Duration
	SharesDisk                  bool
	// Expires returns when this server's certificate expires; nil if the servers have none.
	Expires func() time.Time
}

// Leader is what the fleet needs from the leading server.
type Leader interface {
	// Incarnation is the incarnation of this server's directory, as far as known. OutlivedBy stops
	// this server if a newer incarnation exists.
	Incarnation() moraine.MarkedIncarnation
	OutlivedBy(reported moraine.MarkedIncarnation, who string)
	// Reachable returns the addresses of all metadata servers.
	Reachable() []*wire.MemberAddress
	// Keys are the public keys that check session tokens.
	Keys() []*wire.SigningKey
	// Revoked returns the revoked certificates.
	Revoked() *transport.Revocations
	// OutOfSpace reports whether nothing may grow.
	OutOfSpace() bool
	// Gateways returns the expiry times of the certificates of gateways with sessions.
	Gateways() map[string]time.Time
	// RepairsChanged notifies the leader that other stripes may be repairable now.
	RepairsChanged()
}

// Fleet is one leadership's knowledge of the hosts, their devices and their buckets.
type Fleet struct {
	*lead.Term
	cfg    Config
	leader Leader

	Topology      *topology
	endpoints     *endpoints
	bucketHealths *bucketHealths
	Traits        bucketTraits // of buckets probed by movers
	Certificates  *certificates
	Objects       *ObjectChecks
	absences      *absences
	Horizon       *Horizon
	scrubs        scrubs
	suspects      *suspects
	claims        claims

	HostsRead lead.Poke  // hosts or devices in the state changed
	hostsLoad sync.Mutex // makes reading the hosts and loading them one step
	// allReported: every device has reported since the metadata was restored.
	allReported atomic.Bool
}

// New makes the fleet of a leadership that has received nothing from any host yet.
func New(t *lead.Term, cfg Config, leader Leader) *Fleet {
	topology := NewTopology(t.Store.Term(), cfg.Suspect)
	return &Fleet{
		Term: t, cfg: cfg, leader: leader, Topology: topology, endpoints: newEndpoints(t.Store.Term()), bucketHealths: newBucketHealths(),
		Certificates: newCertificates(), Objects: newObjectChecks(t, topology), suspects: newSuspects(), absences: newAbsences(t, topology),
		Horizon: &Horizon{Term: t, cfg: cfg, topology: topology, leader: leader}, HostsRead: lead.NewPoke(),
	}
}

// mark returns the mark of the incarnation in wire form.
func (f *Fleet) mark() []byte { return transport.MarkBytes(f.leader.Incarnation()) }

// GetTopology answers with the present topology.
func (f *Fleet) GetTopology(ctx context.Context, _ *lead.Call) (*wire.MetaResponse, error) {
	if err := f.Store.ReadBarrier(ctx); err != nil {
		return nil, err
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Topology{Topology: f.Topology.View().Wire}}, nil
}

// MemberEndpoint returns what hosts found when they probed a metadata server.
func (f *Fleet) MemberEndpoint(id string) *wire.EndpointHealth {
	return f.endpoints.health(server{transport.RoleMetadata, id}, f.Clock.Now())
}
