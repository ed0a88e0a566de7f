package kvtx

import (
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// Reads for the service. Each looks at one consistent Reader, and returns an
// error only where the store failed or holds a value that does not decode, or
// as its comment says.

// ClusterInfo is the identity of the cluster.
type ClusterInfo struct {
	UUID         moraine.UUID
	Incarnation  moraine.Incarnation
	FeatureLevel uint64
}

// Cluster returns the identity; Unavailable before Init was applied.
func Cluster(r *View) (ClusterInfo, error) {
	c, err := r.Cluster()
	if err != nil {
		return ClusterInfo{}, err
	}
	return ClusterInfo{c.Uuid, c.Incarnation, c.FeatureLevel}, nil
}

// Unused reports whether no session was opened and no device registered yet.
func Unused(r *View) (bool, error) {
	c, err := r.Counters()
	return err == nil && c[record.CSession] == 0 && c[record.CDevice] == 0, err
}

// ClusterTime returns the cluster time in milliseconds.
func ClusterTime(r *View) (uint64, error) {
	c, err := ReadCounters(r)
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

// ReadCounters returns the counters; all zero before the first command.
func ReadCounters(r *View) (Counters, error) {
	c, err := r.Counters()
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

func (v *View) Counters() (record.Counters, error) {
	var c record.Counters
	b, ok, err := v.R.Get(v.K.Meta(record.MetaCounters))
	if err != nil || !ok {
		return c, err
	}
	err = c.Decode(b)
	return c, err
}

// Sum returns the running sum of the partition: equal on every replica that
// applied the same entries.
func Sum(r *View) (record.Sum, error) {
	b, ok, err := r.Get(r.K.Meta(record.MetaSum))
	if err != nil || !ok {
		return record.Sum{}, err
	}
	return record.DecodeSum(b)
}

// Cluster returns the cluster's record; Unavailable before Init.
// The caller may change it.
func (v *View) Cluster() (*record.Cluster, error) {
	b, ok, err := v.R.Get(v.K.Meta(record.MetaCluster))
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, Fail(moraine.Unavailable, "apply", "", "the cluster has not been initialized yet")
	}
	c := &record.Cluster{}
	return c, c.Decode(b)
}

// Identity is cluster for those who only look.
func (t *Tx) Identity() (*record.Cluster, error) {
	c, err := Look[record.Cluster](&t.View, t.K.Meta(record.MetaCluster))
	if err == nil && c == nil {
		return t.Cluster() // which says that there is none
	}
	return c, err
}

// Session returns a live session; SessionExpired where there is none.
func (v *View) Session(id moraine.SessionID) (*record.Session, error) {
	b, ok, err := v.R.Get(v.K.Session(id))
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, NoSession(id)
	}
	s := &record.Session{Id: id}
	return s, s.Decode(b)
}

// Refuse is an answer that is not kept.
func Refuse(err error) *wire.MetaResponse { return &wire.MetaResponse{Error: WireError(err)} }

// NoSession is the error for a session that does not exist. A caller whose certificate did
// not open a session gets it, too: it does not learn which sessions there are.
func NoSession(id moraine.SessionID) error {
	return Fail(moraine.SessionExpired, "session", id.String(), "open a new one")
}

// KeysUnder returns copies of at most limit keys that begin with prefix.
func (v *View) KeysUnder(prefix []byte, limit int) ([][]byte, error) {
	var keys [][]byte
	if limit <= 0 {
		return nil, nil
	}
	err := v.R.Scan(prefix, PrefixEnd(prefix), func(key, _ []byte) bool {
		keys = append(keys, slices.Clone(key))
		return len(keys) < limit
	})
	return keys, err
}
