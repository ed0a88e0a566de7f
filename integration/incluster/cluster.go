// Package incluster is a whole cluster inside one process: real metadata
// servers over real replicated logs, real chunkservers with their devices and
// movers, and clients. Only the network (transport/memnet) and the disks
// (vfs.Mem) are simulated. So a test can cut the power of any nodes, or of all
// at one moment, and exactly the synced data survives. It runs with or without
// testing/synctest, under which elections and timeouts cost no time.
//
// It is no model of a cluster: every part is the shipped one, wired as the commands
// wire it. It does not imitate bandwidth or slow disks. Tests that need a cluster
// but not its log and disks are faster over package memcluster.
//
// One path through it: Start, then WaitReady, and Client("c1") works.
// PowerCutAfter(n) cuts the power before the n-th file operation from now
// (power.go). Restart starts the nodes on what is left of their disks (node.go),
// and WaitReady waits for them. Check checks every replica's state (check.go). Stop
// ends the cluster.
package incluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/memnet"
)

// Options of a cluster; a zero means the default in the comment.
type Options struct {
	// Seed decides what survives power cuts and how long messages take.
	Seed uint64
	// Metadata servers m1, m2 ... (3), and Chunkservers n1, n2 ... (6; negative:
	// none) of Devices devices each (1).
	Metadata, Chunkservers, Devices int
	// SegmentBytes is the size of a device's segments (1 MiB).
	SegmentBytes int64
	// CapacityBytes is the capacity of each device (1 GiB).
	CapacityBytes uint64
	// SessionTimeout, Grace and RepairGrace are those of package metadata.
	SessionTimeout, Grace, RepairGrace time.Duration
	// TokenLife and KeyLife are those of package metadata (10 min, 24 h).
	TokenLife, KeyLife time.Duration
	// RewriteEvery is that of package metadata (1 h).
	RewriteEvery time.Duration
	// BackupHorizon (none) and PackAfter (24 h) are those of package metadata.
	BackupHorizon, PackAfter time.Duration
	// BackupEvery is how often the leader takes an automatic backup, of which it
	// keeps 3 in BackupDir of its disk (0: never).
	BackupEvery time.Duration
	// Bucket opens the object tier of a chunkserver and its mover; nil: none.
	// SettleTime is that of package metadata.
	Bucket     func(node string) (object.Store, error)
	SettleTime time.Duration
	// ScrubInterval is that of package chunkserver.
	ScrubInterval time.Duration
	// ScrubParity is that of package chunkserver.
	ScrubParity int
	// SnapshotEntries is after how many entries a metadata server takes a snapshot
	// (200); it drops the log before it.
	SnapshotEntries uint64
	// MemTableBytes is the memory of a metadata server's database (256 KiB). With
	// the race detector, each table that is read is expensive.
	MemTableBytes int64
	// Rule is called before each call of a node's file system, after it was
	// counted; nil: none.
	Rule func(node string, op vfs.Op) error
	// Clock is that of a metadata server's service, or of a client. If it is nil or
	// returns nil, the bubble's clock is used.
	Clock func(node string) clock.Clock
	// Store wraps the log of a metadata server; nil: none.
	Store func(node string, s metadata.Store) metadata.Store
	// Meta wraps the metadata service for a chunkserver; nil: none.
	Meta func(node string, m transport.Metadata) transport.Metadata
	// Dialer wraps the network for the client of a chunkserver, by which its
	// repairs and moves read and put chunks; nil: none.
	Dialer func(node string, d transport.Dialer) transport.Dialer
	// Chunks wraps the service of a chunkserver: its answers share the memory of
	// that server. nil: none.
	Chunks func(node string, s transport.ChunkService) transport.ChunkService
	Log    *slog.Logger
}

func (o *Options) setDefaults() {
	def(&o.Metadata, 3)
	def(&o.Chunkservers, 6)
	def(&o.Devices, 1)
	def(&o.SegmentBytes, 1<<20)
	def(&o.CapacityBytes, 1<<30)
	def(&o.SnapshotEntries, 200)
	def(&o.MemTableBytes, 256<<10)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
}

func def[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// BackupDir is the directory of automatic backups of metadata servers.
const BackupDir = "/backups"

// ID is the ID of such a cluster.
func (c *Cluster) ID() moraine.UUID { return clusterID }

// clusterID is the ID of every such cluster.
var clusterID = moraine.UUID{0x69, 0x6e, 0x63, 0x6c, 1}

// Cluster is a running cluster. Methods may be called concurrently, except that
// Restart and Stop are called by one goroutine at a time.
type Cluster struct {
	Net     *memnet.Net
	Metrics Metrics

	opts  Options
	ctx   context.Context
	nodes []*node // in the order m1, m2 ..., n1, n2 ...
	power power

	mu     sync.Mutex // guards the fields below
	failed []error
}

// Start runs a cluster until Stop; ctx limits its life too. It does not wait until
// the cluster is ready: WaitReady does.
func Start(ctx context.Context, opts Options) (*Cluster, error) {
	opts.setDefaults()
	c := &Cluster{Net: memnet.New(opts.Seed), opts: opts, ctx: ctx}
	c.Net.SetFaults("*", "*", memnet.Faults{MaxDelay: 2 * time.Millisecond})
	for i := range opts.Metadata {
		c.addNode(fmt.Sprintf("m%d", i+1), transport.RoleMetadata)
	}
	for i := range opts.Chunkservers {
		c.addNode(fmt.Sprintf("n%d", i+1), transport.RoleChunkserver)
	}
	if err := c.Restart(); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

func (c *Cluster) addNode(id string, role transport.Role) {
	seed := c.opts.Seed<<8 + uint64(len(c.nodes))
	c.nodes = append(c.nodes, &node{c: c, id: id, role: role, mem: vfs.NewMem(seed),
		rng: rand.New(rand.NewPCG(seed, 0x706f776572))})
}

// AddChunkserver starts one more, with empty devices, and returns its id. No other
// method may be called meanwhile.
func (c *Cluster) AddChunkserver() (string, error) {
	c.opts.Chunkservers++
	id := fmt.Sprintf("n%d", c.opts.Chunkservers)
	c.addNode(id, transport.RoleChunkserver)
	return id, c.Restart(id)
}

// Stop ends all nodes, as a signal does, and returns when everything has ended,
// with the errors of the cluster's life. The chunkservers go first: they close
// their sessions, and would wait if no server answers.
func (c *Cluster) Stop() error {
	for _, role := range []transport.Role{transport.RoleChunkserver, transport.RoleMetadata} {
		for _, n := range c.nodes {
			if n.role == role {
				n.stop()
			}
		}
		for _, n := range c.nodes {
			if n.role == role {
				n.wait()
			}
		}
	}
	c.Net.Wait()
	return c.Err()
}

// Err returns the errors of nodes that ended by themselves.
func (c *Cluster) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(c.failed...)
}

func (c *Cluster) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = append(c.failed, err)
}

// Nodes returns the ids of all nodes: the metadata servers, then the
// chunkservers.
func (c *Cluster) Nodes() []string {
	var ids []string
	for _, n := range c.nodes {
		ids = append(ids, n.id)
	}
	return ids
}

// named returns the nodes of these ids; all, if none are given.
func (c *Cluster) named(ids []string) []*node {
	if len(ids) == 0 {
		return c.nodes
	}
	var out []*node
	for _, id := range ids {
		found := false
		for _, n := range c.nodes {
			if n.id == id {
				out, found = append(out, n), true
			}
		}
		if !found {
			panic(fmt.Sprintf("incluster: unknown node %q", id))
		}
	}
	return out
}

// WaitReady returns when a metadata server leads and every node that was not
// stopped accepts requests. It returns an error if one of them ended, or ctx did.
func (c *Cluster) WaitReady(ctx context.Context) error {
	for {
		if err := c.Err(); err != nil {
			return err
		}
		if c.ready() {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the cluster is not ready: %w", ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (c *Cluster) ready() bool {
	leads := false
	for _, n := range c.nodes {
		l := n.current()
		if l == nil || l.gone.Load() {
			continue
		}
		if !l.healthy() {
			return false
		}
		leads = leads || l.leads()
	}
	return leads
}

// Leader returns the leading metadata server; empty if none reports that it leads.
func (c *Cluster) Leader() string {
	for _, n := range c.nodes {
		if l := n.current(); l != nil && !l.gone.Load() && l.leads() {
			return n.id
		}
	}
	return ""
}

// addresses are the addresses of the metadata servers, in the form for clients.
func (c *Cluster) addresses() [][]string {
	var out [][]string
	for _, n := range c.nodes {
		if n.role == transport.RoleMetadata {
			out = append(out, []string{memnet.Address(n.id)})
		}
	}
	return out
}
