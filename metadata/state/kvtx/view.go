package kvtx

import (
	"cmp"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// Reads for the service. Each uses one consistent Reader. It returns an error only if the store
// fails, if a value does not decode, or as its own comment says.

// ClusterInfo is the identity of the cluster.
type ClusterInfo struct {
	UUID         moraine.UUID
	Incarnation  moraine.Incarnation
	FeatureLevel uint64
}

// Cluster returns the cluster's identity; Unavailable before Init was applied.
func Cluster(r *View) (ClusterInfo, error) {
	c, err := r.Cluster()
	if err != nil {
		return ClusterInfo{}, err
	}
	return ClusterInfo{c.Uuid, c.Incarnation, c.FeatureLevel}, nil
}

// Unused reports whether the cluster never opened a session and never registered a device.
func Unused(r *View) (bool, error) {
	c, err := r.Counters()
	return err == nil && c[record.CSession] == 0 && c[record.CDevice] == 0, err
}

// ClusterTime returns the cluster time in milliseconds.
func ClusterTime(r *View) (uint64, error) {
	c, err := ReadCounters(r)
	return c.ClusterTime, err
}

// Counters are the cluster's totals.
type Counters struct {
	ClusterTime  uint64 // milliseconds
	Commands     uint64 // commands applied
	Entries      uint64 // log entries with these commands
	Sessions     uint64
	Inodes       uint64
	Stripes      uint64
	RepairQueued uint64 // stripes
	LostStripes  uint64
	PendingBytes uint64 // dead chunks that wait for deletion
	KeptBytes    uint64 // part of PendingBytes: a backup may name these chunks
	LeakedBytes  uint64 // chunks on devices that no record explains
	Topology     uint64 // grows with every change of hosts and devices
	Policies     uint64 // directories with a policy of their own
	Objects      uint64
	BadObjects   uint64 // part of them: the bucket's object differs from the record
	InlineFiles  uint64 // contents of small files in the state; clones share one
	InlineBytes  uint64 // in them
	StuckMoves   uint64 // jobs of the object tier that fail again and again
}

// ReadCounters returns the totals; all zero before the first command.
func ReadCounters(r *View) (Counters, error) {
	c, err := r.Counters()
	if err != nil {
		return Counters{}, err
	}
	return Counters{
		ClusterTime: c[record.CClusterTime], Commands: c[record.CCommands], Entries: c[record.CEntries], Sessions: c[record.CSessions],
		Inodes: c[record.CInodes], Stripes: c[record.CStripes], RepairQueued: c[record.CRepairQueued], LostStripes: c[record.CLostStripes],
		PendingBytes: c[record.CPendingBytes], KeptBytes: c[record.CKeptBytes], LeakedBytes: c[record.CLeakedBytes], Topology: c[record.CTopology], Policies: c[record.CPolicies],
		Objects: c[record.CObjects], BadObjects: c[record.CBadObjects], StuckMoves: c[record.CStuckMoves],
		InlineFiles: c[record.CInlines], InlineBytes: c[record.CInlineBytes],
	}, nil
}

// Counters returns the counters of the partition; all zero before the first command.
func (v *View) Counters() (record.Counters, error) {
	var c record.Counters
	b, ok, err := v.R.Get(v.K.Meta(record.MetaCounters))
	if err != nil || !ok {
		return c, err
	}
	err = c.Decode(b)
	return c, err
}

// Sum returns the running sum of the partition. Replicas that applied the same entries have equal
// sums.
func Sum(r *View) (record.Sum, error) {
	b, ok, err := r.Get(r.K.Meta(record.MetaSum))
	if err != nil || !ok {
		return record.Sum{}, err
	}
	return record.DecodeSum(b)
}

// Cluster returns the cluster record; Unavailable before Init. The caller may change the returned
// copy.
func (v *View) Cluster() (*record.Cluster, error) {
	b, ok, err := v.R.Get(v.K.Meta(record.MetaCluster))
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, Fail(moraine.Unavailable, "apply", "", "the cluster is not initialized yet: try again in a moment")
	}
	c := &record.Cluster{}
	return c, c.Decode(b)
}

// Identity is Cluster for callers that only read.
func (t *Tx) Identity() (*record.Cluster, error) {
	c, err := Look[record.Cluster](&t.View, t.K.Meta(record.MetaCluster))
	if err == nil && c == nil {
		return t.Cluster() // returns the error for a missing record
	}
	return c, err
}

// Session returns a live session, or SessionExpired if there is none.
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

// Refuse returns an error answer that the state does not keep.
func Refuse(err error) *wire.MetaResponse { return &wire.MetaResponse{Error: WireError(err)} }

// NoSession is the error for a session that does not exist. A caller whose certificate did not open
// the session gets the same error, so that it cannot learn which sessions exist.
func NoSession(id moraine.SessionID) error {
	return Fail(moraine.SessionExpired, "session", id.String(), "open a new session")
}

// Each calls fn with each pair of lo <= key < hi in key order, until fn returns false or fails. The
// slices are valid only during the call. It returns the error of fn or of the scan.
func (v *View) Each(lo, hi []byte, fn func(key, value []byte) (more bool, err error)) error {
	var bad error
	err := v.R.Scan(lo, hi, func(key, value []byte) bool {
		var more bool
		more, bad = fn(key, value)
		return more && bad == nil
	})
	return cmp.Or(err, bad)
}

// EachIn is Each for the keys that begin with prefix.
func (v *View) EachIn(prefix []byte, fn func(key, value []byte) (more bool, err error)) error {
	return v.Each(prefix, PrefixEnd(prefix), fn)
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
