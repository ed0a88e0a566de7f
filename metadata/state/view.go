package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
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
	return ClusterInfo{c.Uuid, c.Incarnation, c.FeatureLevel}, nil
}

// Unused reports whether no session was opened and no device registered yet.
func (m *Machine) Unused(r Reader) (bool, error) {
	c, err := m.view(r).counters()
	return err == nil && c[record.CSession] == 0 && c[record.CDevice] == 0, err
}

// SigningKeys returns the keys that session tokens are signed with, oldest id
// first, with their private halves as the service sealed them.
func (m *Machine) SigningKeys(r Reader) ([]*wire.SigningKey, error) {
	return m.view(r).signingKeys()
}

// Session returns a live session; SessionExpired where there is none.
func (m *Machine) Session(r Reader, id moraine.SessionID) (record.SessionInfo, error) {
	s, err := m.view(r).session(id)
	if err != nil {
		return record.SessionInfo{}, err
	}
	return s.Info(), nil
}

// Sessions calls fn with every live session, in order of number, until it
// returns false.
func (m *Machine) Sessions(r Reader, fn func(record.SessionInfo) bool) error {
	var bad error
	prefix := m.k.table(record.TabSession)
	err := r.Scan(prefix, prefixEnd(prefix), func(key, value []byte) bool {
		s := &record.Session{Id: moraine.SessionID(record.LastU64(key))}
		if bad = s.Decode(value); bad != nil {
			return false
		}
		return fn(s.Info())
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
	g, err := m.view(r).grantIn(record.TabGrant, id)
	if err != nil || g == nil {
		return GrantInfo{}, false, err
	}
	chunks, length := g.PerStripe()
	return GrantInfo{g.First, g.Count, g.Session, g.Tenant, chunks, length}, true, nil
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
		ClusterTime: c[record.CClusterTime], Commands: c[record.CCommands], Entries: c[record.CEntries], Sessions: c[record.CSessions],
		Inodes: c[record.CInodes], Stripes: c[record.CStripes], RepairQueued: c[record.CRepairQueued], LostStripes: c[record.CLostStripes],
		PendingBytes: c[record.CPendingBytes], KeptBytes: c[record.CKeptBytes], LeakedBytes: c[record.CLeakedBytes], Topology: c[record.CTopology], Policies: c[record.CPolicies],
		Objects: c[record.CObjects], BadObjects: c[record.CBadObjects],
	}, nil
}

func (v *view) counters() (record.Counters, error) {
	var c record.Counters
	b, ok, err := v.r.Get(v.k.meta(record.MetaCounters))
	if err != nil || !ok {
		return c, err
	}
	err = c.Decode(b)
	return c, err
}

// Sum returns the running sum of the partition: equal on every replica that
// applied the same entries.
func (m *Machine) Sum(r Reader) (record.Sum, error) {
	b, ok, err := r.Get(m.k.meta(record.MetaSum))
	if err != nil || !ok {
		return record.Sum{}, err
	}
	return record.DecodeSum(b)
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
	return []moraine.Tenant{i.Tenant}, false, nil
}
