package raftstore

import (
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

// Config is what an operator may set. The zero value of a field means its
// default; Dir, Cluster, Node and Peers must be given.
type Config struct {
	// Dir is the node's directory. One process at a time.
	Dir string
	// Cluster is the identity that Dir must carry.
	Cluster moraine.UUID
	// Node is this node's ID: one of Peers.
	Node string
	// Peers are the voters that the group is formed of, this node among them.
	// After Bootstrap the voters are what the log says; Peers still gives their
	// addresses, so that a node may move.
	Peers []Peer

	// HeartbeatTimeout is how long a follower waits for the leader before it
	// campaigns (drawn from [T, 1.5T), see election.go), ElectionTimeout how long a
	// campaign lasts (from [T, 2T)), LeaderLease after how long without a majority a
	// leader steps down, a little less than HeartbeatTimeout at most. Default
	// 500 ms each, 50 ms where this node is the only peer. A voter refuses its vote
	// while it still believes in a leader, so after the death of a leader both
	// others must have waited; docs/BENCHMARKS.md has what that takes, and
	// docs/rfcs/0014-leader-silence.md why the default holds on a busy machine.
	HeartbeatTimeout, ElectionTimeout, LeaderLease time.Duration
	// CommitTimeout is how soon an idle group tells followers what is committed.
	// Default 50 ms.
	CommitTimeout time.Duration
	// RPCTimeout bounds one exchange between nodes. Default 5 s.
	RPCTimeout time.Duration

	// MaxAppendEntries bounds the entries of one message between nodes and of
	// one batch applied. Default 128: an entry holds up to hundreds of commands,
	// so that more would make messages of many MiB, and gain nothing.
	MaxAppendEntries int
	// MaxInFlight bounds the proposals that wait for their commit; more wait for
	// their turn. Default 256.
	MaxInFlight int

	// SnapshotInterval is how often a snapshot is considered (drawn from
	// [T, 2T)), SnapshotEntries how many entries must have come since the last.
	// Defaults 60 s, 8,192. A snapshot is a flush and some hard links.
	SnapshotInterval time.Duration
	SnapshotEntries  uint64
	// Log entries that a snapshot covers are kept until they are older than
	// LogRetention (default 10 min) or the log is larger than LogRetentionBytes
	// (default 4 GiB), so that a node back from a reboot needs no snapshot; and from a
	// snapshot on that is being sent, until LogRetention after that has ended.
	LogRetention      time.Duration
	LogRetentionBytes int64
	// SegmentBytes is the size of one log file. Default 64 MiB.
	SegmentBytes int
	// LogStall is how long one append may take before the node gives up its
	// place: a leader whose disk hangs cannot step down. One without other voters waits.
	// Default 2 s.
	LogStall time.Duration

	// CacheBytes bounds the cache of state blocks, default 256 MiB;
	// MemTableBytes one table in memory, default 32 MiB; RecordCacheBytes about
	// what is kept of records in use, default a quarter of CacheBytes.
	CacheBytes, MemTableBytes, RecordCacheBytes int64

	// MinFree is the part of the disk below which LowSpace reports true. Default
	// 0.05.
	MinFree float64
	// BallastBytes is the size of a file that is given up when the disk is
	// almost full, so that what frees space can still be written. Default twice
	// SegmentBytes, as each log file is made whole; negative for none.
	BallastBytes int64
}

// Peer is one voter.
type Peer struct {
	ID string
	// Address is where the other nodes reach it, as Stream.Dial takes it.
	Address string
	// Client are the addresses that clients reach it by; NotLeader errors carry
	// the leader's.
	Client []string
}

// Stream carries the bytes between the nodes: connections that are
// authenticated where the cluster asks for it. Close unblocks Accept. A connection
// may be Ungreeted.
type Stream interface {
	net.Listener
	Dial(address string, timeout time.Duration) (net.Conn, error)
}

// FSM is the state machine that the log drives.
type FSM interface {
	// ApplyEntry applies one committed entry. What it writes to kv becomes
	// durable and visible together with the fact that index was applied, once.
	// It is called by one goroutine, in the order of the log, and must not
	// retain kv, entry or what it read. result goes to the proposer. An error
	// means that this node cannot go on: it stops, and nothing of the entry is
	// kept.
	ApplyEntry(kv kvtx.KV, index uint64, entry []byte) (result any, err error)
}

// Deps is what a test replaces. Stream and FSM must be given.
type Deps struct {
	FS      vfs.FS      // default vfs.OS{}
	Clock   clock.Clock // default clock.System{}
	Rand    io.Reader   // of directory names; default: the machine's
	Log     *slog.Logger
	Metrics *Metrics // default: unregistered
	Stream  Stream
	FSM     FSM
	// CheckEntry returns an error (Corrupt) for an entry whose bytes are not those that
	// were proposed. Each entry that is read from the log is given to it. Nil: nothing
	// is found before the FSM finds it.
	CheckEntry func(entry []byte) error
	// Incarnation reads the number of the incarnation that a state is of, 0 where it
	// says none. Nil: no state says any.
	Incarnation func(r kvtx.Reader) (moraine.Incarnation, error)
	// IncarnationAfter is the number that an entry leaves, applied to a state of
	// number before. Nil: no entry changes it.
	IncarnationAfter func(entry []byte, before moraine.Incarnation) moraine.Incarnation
}

func (c *Config) setDefaults() {
	orDuration := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	if len(c.Peers) == 1 {
		orDuration(&c.HeartbeatTimeout, 50*time.Millisecond)
	}
	orDuration(&c.HeartbeatTimeout, 500*time.Millisecond)
	orDuration(&c.ElectionTimeout, c.HeartbeatTimeout)
	orDuration(&c.LeaderLease, c.HeartbeatTimeout)
	orDuration(&c.CommitTimeout, 50*time.Millisecond)
	orDuration(&c.RPCTimeout, 5*time.Second)
	orDuration(&c.SnapshotInterval, time.Minute)
	orDuration(&c.LogRetention, 10*time.Minute)
	orDuration(&c.LogStall, 2*time.Second)
	if c.MaxAppendEntries == 0 {
		c.MaxAppendEntries = 128
	}
	if c.MaxInFlight == 0 {
		c.MaxInFlight = 256
	}
	if c.SnapshotEntries == 0 {
		c.SnapshotEntries = 8192
	}
	if c.LogRetentionBytes == 0 {
		c.LogRetentionBytes = 4 << 30
	}
	if c.SegmentBytes == 0 {
		c.SegmentBytes = 64 << 20
	}
	if c.CacheBytes == 0 {
		c.CacheBytes = 256 << 20
	}
	if c.MemTableBytes == 0 {
		c.MemTableBytes = 32 << 20
	}
	if c.RecordCacheBytes == 0 {
		c.RecordCacheBytes = c.CacheBytes / 4
	}
	if c.MinFree == 0 {
		c.MinFree = 0.05
	}
	if c.BallastBytes == 0 {
		c.BallastBytes = 2 * int64(c.SegmentBytes)
	}
}

func (c *Config) validate() error {
	switch {
	case c.Dir == "":
		return errors.New("no directory is given")
	case c.Cluster.IsZero():
		return errors.New("no cluster is given")
	case c.Node == "" || len(c.Node) > maxNodeName:
		return fmt.Errorf("node name %q: 1 to %d bytes are needed", c.Node, maxNodeName)
	case c.MaxAppendEntries < 1 || c.MaxAppendEntries > 1024:
		return fmt.Errorf("max append entries %d: 1 to 1024 are possible", c.MaxAppendEntries)
	case c.HeartbeatTimeout < 10*time.Millisecond || c.ElectionTimeout < c.HeartbeatTimeout || c.LeaderLease > c.HeartbeatTimeout:
		return fmt.Errorf("a heartbeat timeout of %v, an election timeout of %v, a leader's lease of %v: the first is at least 10ms, the second no shorter, the third no longer",
			c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLease)
	case c.SegmentBytes < 64<<10 || c.SegmentBytes > 1<<30:
		return fmt.Errorf("log segments of %d bytes: 64 KiB to 1 GiB are possible", c.SegmentBytes)
	}
	seen := map[string]bool{}
	for _, p := range c.Peers {
		if p.ID == "" || p.Address == "" || seen[p.ID] {
			return fmt.Errorf("peer %q at %q: each needs a name of its own and an address", p.ID, p.Address)
		}
		seen[p.ID] = true
	}
	if !seen[c.Node] {
		return fmt.Errorf("node %q is not among the peers", c.Node)
	}
	return nil
}

func (d *Deps) setDefaults() {
	if d.FS == nil {
		d.FS = vfs.OS{}
	}
	if d.Clock == nil {
		d.Clock = clock.System{}
	}
	if d.Rand == nil {
		d.Rand = rand.Reader
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
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
