package raftstore

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
)

// Config has the operator's settings. A zero field means its default. Dir, Cluster, Node and Peers
// are required.
type Config struct {
	// Dir is the node's directory. One process at a time may use it.
	Dir string
	// Cluster is the cluster identity that Dir must have.
	Cluster moraine.UUID
	// Node is this node's ID: one of Peers.
	Node string
	// Peers are the voters that form the group, including this node. After Bootstrap the log
	// determines the voters; Peers still gives their addresses, so that a node may move.
	Peers []Peer

	// HeartbeatTimeout is how long a follower waits for the leader before it campaigns (drawn from
	// [T, 1.5T), see election.go). ElectionTimeout is how long a campaign lasts (from [T, 2T)).
	// LeaderLease is the time without a majority after which a leader steps down; it is slightly
	// below HeartbeatTimeout at most. The default is 500 ms each, and 50 ms if this node is the
	// only peer. A voter refuses its vote while it still believes in a leader, so after a leader's
	// death both others must have waited. docs/BENCHMARKS.md has the measured times, and
	// docs/rfcs/0014-leader-silence.md explains why the default is sufficient on a busy machine.
	HeartbeatTimeout, ElectionTimeout, LeaderLease time.Duration
	// CommitTimeout is how soon an idle group sends followers the commit index. Default 50 ms.
	CommitTimeout time.Duration
	// RPCTimeout bounds one exchange between nodes. Default 5 s.
	RPCTimeout time.Duration

	// MaxAppendEntries bounds the entries in one message between nodes and in one applied batch.
	// Default 128: an entry has up to hundreds of commands, so that more would make messages of
	// many MiB without benefit.
	MaxAppendEntries int
	// MaxInFlight bounds the proposals that wait for their commit; more wait for a place. Default
	// 256.
	MaxInFlight int

	// SnapshotInterval is how often a snapshot is considered (drawn from [T, 2T)). SnapshotEntries
	// is how many entries must have been added since the last. Defaults 60 s, 8,192. A snapshot is
	// a flush and some hard links.
	SnapshotInterval time.Duration
	SnapshotEntries  uint64
	// Log entries covered by a snapshot are kept, so that a rebooted node needs no
	// snapshot. They go when they are older than LogRetention (default 10 min), or
	// when the log is larger than LogRetentionBytes (default 4 GiB). While a
	// snapshot is being sent, the log is kept from it on, until LogRetention after
	// the end.
	LogRetention      time.Duration
	LogRetentionBytes int64
	// SegmentBytes is the size of one log file. Default 64 MiB.
	SegmentBytes int
	// LogStall is how long one append may take before the node stops, because a leader whose disk
	// hangs cannot step down. A node without other voters waits instead. Default 2 s.
	LogStall time.Duration

	// CacheBytes bounds the cache of state blocks, default 256 MiB. MemTableBytes bounds one table
	// in memory, default 32 MiB. RecordCacheBytes approximately bounds the cached records in use,
	// default a quarter of CacheBytes.
	CacheBytes, MemTableBytes, RecordCacheBytes int64

	// MinFree is the free part of the disk below which LowSpace reports true. Default 0.05.
	MinFree float64
	// BallastBytes is the size of a file that is deleted when the disk is almost
	// full. Then requests that free space can still be written. Default twice
	// SegmentBytes, since each log file is preallocated; negative: none.
	BallastBytes int64
}

// Peer is one voter.
type Peer struct {
	ID string
	// Address is where other nodes connect to it, in the form of Stream.Dial.
	Address string
	// Client has its addresses for clients. NotLeader errors name those of the
	// leader.
	Client []string
}

// Stream carries the bytes between the nodes, over connections that are authenticated if the
// cluster requires it. Close unblocks Accept.
type Stream interface {
	net.Listener
	Dial(address string, timeout time.Duration) (net.Conn, error)
}

// FSM is the state machine to which the log is applied.
type FSM interface {
	// ApplyEntry applies one committed entry. Its writes to kv become durable and visible together
	// with the record that index was applied, exactly once. One goroutine calls it in log order. It
	// must not retain kv, entry or what it read. The proposer gets result. An error means that this
	// node cannot continue: it stops and discards the entry's writes.
	ApplyEntry(kv kvtx.KV, index uint64, entry []byte) (result any, err error)
}

// Deps are the dependencies that tests replace. Stream and FSM are required.
type Deps struct {
	FS      vfs.FS      // default vfs.OS{}
	Clock   clock.Clock // default clock.System{}
	Rand    io.Reader   // source of directory names; default: the machine's
	Log     *slog.Logger
	Metrics *Metrics // default: unregistered
	Stream  Stream
	FSM     FSM
	// CheckEntry returns an error (Corrupt) if an entry's bytes differ from the proposed ones. It
	// is called for each entry read from the log. If it is nil, only the FSM can find damage.
	CheckEntry func(entry []byte) error
	// Incarnation reads a state's incarnation; 0 if it has none. If it is nil, no state has one.
	Incarnation func(r kvtx.Reader) (moraine.Incarnation, error)
	// IncarnationAfter returns the incarnation after an entry, applied to a state of incarnation
	// before. If it is nil, no entry changes it.
	IncarnationAfter func(entry []byte, before moraine.Incarnation) moraine.Incarnation
}

func (c *Config) setDefaults() {
	if len(c.Peers) == 1 {
		c.HeartbeatTimeout = cmp.Or(c.HeartbeatTimeout, 50*time.Millisecond)
	}
	c.HeartbeatTimeout = cmp.Or(c.HeartbeatTimeout, 500*time.Millisecond)
	c.ElectionTimeout = cmp.Or(c.ElectionTimeout, c.HeartbeatTimeout)
	c.LeaderLease = cmp.Or(c.LeaderLease, c.HeartbeatTimeout)
	c.CommitTimeout = cmp.Or(c.CommitTimeout, 50*time.Millisecond)
	c.RPCTimeout = cmp.Or(c.RPCTimeout, 5*time.Second)
	c.SnapshotInterval = cmp.Or(c.SnapshotInterval, time.Minute)
	c.LogRetention = cmp.Or(c.LogRetention, 10*time.Minute)
	c.LogStall = cmp.Or(c.LogStall, 2*time.Second)
	c.MaxAppendEntries = cmp.Or(c.MaxAppendEntries, 128)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, 256)
	c.SnapshotEntries = cmp.Or(c.SnapshotEntries, 8192)
	c.LogRetentionBytes = cmp.Or(c.LogRetentionBytes, 4<<30)
	c.SegmentBytes = cmp.Or(c.SegmentBytes, 64<<20)
	c.CacheBytes = cmp.Or(c.CacheBytes, 256<<20)
	c.MemTableBytes = cmp.Or(c.MemTableBytes, 32<<20)
	c.RecordCacheBytes = cmp.Or(c.RecordCacheBytes, c.CacheBytes/4)
	c.MinFree = cmp.Or(c.MinFree, 0.05)
	c.BallastBytes = cmp.Or(c.BallastBytes, 2*int64(c.SegmentBytes))
}

func (c *Config) validate() error {
	switch {
	case c.Dir == "":
		return errors.New("no directory is given")
	case c.Cluster.IsZero():
		return errors.New("no cluster is given")
	case c.Node == "" || len(c.Node) > maxNodeName:
		return fmt.Errorf("node name %q: it must have 1 to %d bytes", c.Node, maxNodeName)
	case c.MaxAppendEntries < 1 || c.MaxAppendEntries > 1024:
		return fmt.Errorf("max append entries is %d, but must be 1 to 1024", c.MaxAppendEntries)
	case c.HeartbeatTimeout < 10*time.Millisecond || c.ElectionTimeout < c.HeartbeatTimeout || c.LeaderLease > c.HeartbeatTimeout:
		return fmt.Errorf("heartbeat timeout %v, election timeout %v, leader lease %v: use a heartbeat timeout of 10ms or more, no shorter election timeout, and no longer lease",
			c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLease)
	case c.SegmentBytes < 64<<10 || c.SegmentBytes > 1<<30:
		return fmt.Errorf("log segments have %d bytes, but must have 64 KiB to 1 GiB", c.SegmentBytes)
	}
	seen := map[string]bool{}
	for _, p := range c.Peers {
		if p.ID == "" || p.Address == "" || seen[p.ID] {
			return fmt.Errorf("peer %q at %q: each peer needs its own name and an address", p.ID, p.Address)
		}
		seen[p.ID] = true
	}
	if !seen[c.Node] {
		return fmt.Errorf("node %q is not among the peers", c.Node)
	}
	return nil
}

func (d *Deps) setDefaults() {
	d.FS = cmp.Or[vfs.FS](d.FS, vfs.OS{})
	d.Clock = cmp.Or[clock.Clock](d.Clock, clock.System{})
	d.Rand = cmp.Or[io.Reader](d.Rand, rand.Reader)
	d.Log = cmp.Or(d.Log, slog.New(slog.DiscardHandler))
	if d.Metrics == nil {
		d.Metrics = NewMetrics(nil)
	}
}

func (c *Config) peer(id string) (Peer, bool) {
	for _, p := range c.Peers {
		if p.ID == id {
			return p, true
		}
	}
	return Peer{}, false
}
