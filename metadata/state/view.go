package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// Reads for the service. Each looks at one consistent Reader, and returns an
// error only where the store failed or holds a value that does not decode, or
// as its comment says.

func (m *Machine) view(r Reader) *view { return &view{r: r, k: m.k} }

// ClusterInfo is the identity of the cluster.
type ClusterInfo struct {
	UUID         moraine.UUID
	Incarnation  moraine.Incarnation
	FeatureLevel uint64
}

// Cluster returns the identity; Unavailable before Init was applied.
func (m *Machine) Cluster(r Reader) (ClusterInfo, error) {
	c, err := m.view(r).cluster()
	if err != nil {
		return ClusterInfo{}, err
	}
	return ClusterInfo{c.uuid, c.incarnation, c.featureLevel}, nil
}

// Unused reports whether no session was opened and no device registered yet.
func (m *Machine) Unused(r Reader) (bool, error) {
	c, err := m.view(r).counters()
	return err == nil && c[cSession] == 0 && c[cDevice] == 0, err
}

// SigningKeys returns the keys that session tokens are signed with, oldest id
// first, with their private halves as the service sealed them.
func (m *Machine) SigningKeys(r Reader) ([]*wire.SigningKey, error) {
	return m.view(r).signingKeys()
}

// SessionInfo is a session as the service sees it.
type SessionInfo struct {
	ID   moraine.SessionID
	Node string
	// Principal identifies the certificate that opened it.
	Principal Principal
	Role      string
	Root      moraine.InodeID
	Scope     string
	ReadOnly  bool
	Squash    bool
	Opened    uint64 // cluster time, milliseconds
	Leases    bool   // it may hold leases
}

func (s *session) info() SessionInfo {
	return SessionInfo{ID: s.id, Node: s.node, Principal: s.principal, Role: s.role, Root: s.root, Scope: s.scope, ReadOnly: s.readOnly,
		Squash: s.squash, Opened: s.opened, Leases: s.leases}
}

// Session returns a live session; SessionExpired where there is none.
func (m *Machine) Session(r Reader, id moraine.SessionID) (SessionInfo, error) {
	s, err := m.view(r).session(id)
	if err != nil {
		return SessionInfo{}, err
	}
	return s.info(), nil
}

// Sessions calls fn with every live session, in order of number, until it
// returns false.
func (m *Machine) Sessions(r Reader, fn func(SessionInfo) bool) error {
	var bad error
	prefix := m.k.table(tabSession)
	err := r.Scan(prefix, prefixEnd(prefix), func(key, value []byte) bool {
		s := &session{id: moraine.SessionID(lastU64(key))}
		if bad = s.decode(value); bad != nil {
			return false
		}
		return fn(s.info())
	})
	if err == nil {
		err = bad
	}
	return err
}

// StripeByID returns a stripe's record; nil where there is none.
func (m *Machine) StripeByID(r Reader, id moraine.StripeID) (*moraine.Stripe, error) {
	return m.view(r).stripe(id)
}

// GrantInfo is a live grant.
type GrantInfo struct {
	First   moraine.StripeID
	Count   uint32
	Session moraine.SessionID
	Tenant  moraine.Tenant
	// Chunks is how many chunks a stripe may have, ChunkLength how many bytes a chunk.
	Chunks, ChunkLength uint32
}

// LiveGrant returns the live grant that covers a stripe number; false if none
// does.
func (m *Machine) LiveGrant(r Reader, id moraine.StripeID) (GrantInfo, bool, error) {
	g, err := m.view(r).grantIn(tabGrant, id)
	if err != nil || g == nil {
		return GrantInfo{}, false, err
	}
	chunks, length := g.perStripe()
	return GrantInfo{g.first, g.count, g.session, g.tenant, chunks, length}, true, nil
}

// ClusterTime returns the cluster time in milliseconds.
func (m *Machine) ClusterTime(r Reader) (uint64, error) {
	c, err := m.Counters(r)
	return c.ClusterTime, err
}

// Counters is how much there is.
type Counters struct {
	ClusterTime  uint64 // milliseconds
	Commands     uint64 // applied
	Entries      uint64 // log entries that held them
	Sessions     uint64
	Inodes       uint64
	Stripes      uint64
	RepairQueued uint64 // stripes
	LostStripes  uint64
	PendingBytes uint64 // dead, waiting for deletion
	KeptBytes    uint64 // of these: a backup may name them
	LeakedBytes  uint64 // held by devices, explained by nothing
	Topology     uint64 // raised by every change of hosts and devices
	Policies     uint64 // directories that have one of their own
	Objects      uint64
	BadObjects   uint64 // of them: not in their bucket as they were recorded
}

// Counters returns the counters; all zero before the first command.
func (m *Machine) Counters(r Reader) (Counters, error) {
	c, err := m.view(r).counters()
	if err != nil {
		return Counters{}, err
	}
	return Counters{
		ClusterTime: c[cClusterTime], Commands: c[cCommands], Entries: c[cEntries], Sessions: c[cSessions],
		Inodes: c[cInodes], Stripes: c[cStripes], RepairQueued: c[cRepairQueued], LostStripes: c[cLostStripes],
		PendingBytes: c[cPendingBytes], KeptBytes: c[cKeptBytes], LeakedBytes: c[cLeakedBytes], Topology: c[cTopology], Policies: c[cPolicies],
		Objects: c[cObjects], BadObjects: c[cBadObjects],
	}, nil
}

func (v *view) counters() (counters, error) {
	var c counters
	b, ok, err := v.r.Get(v.k.meta(metaCounters))
	if err != nil || !ok {
		return c, err
	}
	err = c.decode(b)
	return c, err
}

// Sum returns the running sum of the partition: equal on every replica that
// applied the same entries.
func (m *Machine) Sum(r Reader) (Sum, error) {
	b, ok, err := r.Get(m.k.meta(metaSum))
	if err != nil || !ok {
		return Sum{}, err
	}
	return decodeSum(b)
}

// Tenants returns the numbers of the tenants whose top-level directories lie
// in the session's scope: what a token of the session admits to. all is true
// for a scope that is the root.
func (m *Machine) Tenants(r Reader, root moraine.InodeID) (tenants []moraine.Tenant, all bool, err error) {
	if root == m.k.top() {
		return nil, true, nil
	}
	i, err := m.view(r).inode(root)
	if err != nil {
		return nil, false, err
	}
	return []moraine.Tenant{i.tenant}, false, nil
}
