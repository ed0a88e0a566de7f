// Package incluster is a whole cluster inside one process: real metadata
// servers over real replicated logs, real chunkservers with their devices and
// movers, and clients. Only two things are not the machine's: the network
// (transport/memnet) and the disks (vfs.Mem), so that a test can take the power
// of any nodes, or of all at one instant, and have exactly that survive which
// was synced. It runs under testing/synctest, where elections and time-outs
// cost no time, and without.
//
// It is no model of a cluster: every part is the shipped one, wired as the
// commands wire it. It does not imitate bandwidth or slow disks. What needs a
// cluster but not its log and disks is quicker over package memcluster.
//
// One path through it: Start -> WaitReady -> Client("c1") works ->
// PowerCutAfter(n) takes the power before the n-th file operation from now
// (power.go) -> Restart starts the nodes on what is left of their disks
// (node.go) -> WaitReady -> Check holds every replica's state against itself
// (check.go) -> Stop.
package incluster

import (
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
	"github.com/morainefs/moraine/mover"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/memnet"
)

// Options of a cluster; a zero takes the default that is named beside it.
type Options struct {
	// Seed decides what survives power cuts and how long messages take.
	Seed uint64
	// Metadata servers m1, m2 ... (3), and Chunkservers n1, n2 ... (6; negative:
	// none) of Devices devices each (1).
	Metadata, Chunkservers, Devices int
	// SegmentBytes is the size of a device's segments (1 MiB).
	SegmentBytes int64
	// CapacityBytes is what each device keeps at most (1 GiB).
	CapacityBytes uint64
	// SessionTimeout, Grace and RepairGrace are those of package metadata.
	SessionTimeout, Grace, RepairGrace time.Duration
	// TokenLife and KeyLife are those of package metadata (10 min, 24 h).
	TokenLife, KeyLife time.Duration
	// RewriteEvery is that of package metadata (1 h).
	RewriteEvery time.Duration
	// BackupHorizon (none) and PackAfter (24 h) are those of package metadata.
	BackupHorizon, PackAfter time.Duration
	// BackupEvery is how often the leader takes a backup by itself, of which it keeps 3 in
	// BackupDir of its disk (0: it takes none).
	BackupEvery time.Duration
	// Bucket opens the object tier of a chunkserver and its mover; nil: there is
	// none. SettleTime is that of package metadata.
	Bucket     func(node string) (mover.Bucket, error)
	SettleTime time.Duration
	// ScrubInterval is that of package chunkserver.
	ScrubInterval time.Duration
	// ScrubParity is that of package chunkserver.
	ScrubParity int
	// SnapshotEntries is after how many entries a metadata server takes a
	// snapshot (200); the log before it is not kept.
	SnapshotEntries uint64
	// MemTableBytes is what the database of a metadata server has in memory (256 KiB).
	// The race detector's build of it pays dearly for each table that is read.
	MemTableBytes int64
	// Rule is asked before each call of a node's file system, after it was
	// counted; nil: none.
	Rule func(node string, op vfs.Op) error
	// Clock is that of a metadata server's service, or of a client; nil, and where
	// it returns nil, the bubble's.
	Clock func(node string) clock.Clock
	// Store is put between a metadata server and its log; nil: nothing is.
	Store func(node string, s metadata.Store) metadata.Store
	// Meta is put between a chunkserver and the metadata service; nil: nothing is.
	Meta func(node string, m transport.Metadata) transport.Metadata
	// Dialer is put between the client of a chunkserver, by which its repairs and moves read
	// and put chunks, and the network; nil: nothing is.
	Dialer func(node string, d transport.Dialer) transport.Dialer
	// Chunks is put between the network and the service of a chunkserver: what it answers with
	// is the memory of that server. nil: nothing is.
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
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

func def[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// BackupDir is where metadata servers keep the backups that they take by themselves.
const BackupDir = "/backups"

// ID is what such a cluster is called.
func (c *Cluster) ID() moraine.UUID { return clusterID }

// clusterID is what every such cluster is called.
var clusterID = moraine.UUID{0x69, 0x6e, 0x63, 0x6c, 1}

// Cluster is a running cluster. Methods may be called concurrently, except that
// Restart and Stop are called by one goroutine at a time.
type Cluster struct {
	Net *memnet.Net

	opts  Options
	ctx   context.Context
	nodes []*node // in the order m1, m2 ..., n1, n2 ...
	power power

	counts metrics

	mu     sync.Mutex // guards what follows
	failed []error
}

// Start runs a cluster until Stop; ctx bounds its life too. It does not wait
// for it: WaitReady does.
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

// Stop ends all nodes, as a signal does, and returns when everything has ended:
// with what went wrong in the cluster's life. The chunkservers go first: they give
// their sessions back, for which they wait a while where nobody answers.
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

// Err returns the errors with which nodes ended that nobody stopped.
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
			panic(fmt.Sprintf("incluster: there is no node %q", id))
		}
	}
	return out
}

// WaitReady returns when a metadata server leads and every node that was not
// stopped takes requests; with an error where one of them ended, or ctx did.
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

// Leader returns the metadata server that leads; empty where none says so.
func (c *Cluster) Leader() string {
	for _, n := range c.nodes {
		if l := n.current(); l != nil && !l.gone.Load() && l.leads() {
			return n.id
		}
	}
	return ""
}

// addresses of the metadata servers, as clients are given them.
func (c *Cluster) addresses() [][]string {
	var out [][]string
	for _, n := range c.nodes {
		if n.role == transport.RoleMetadata {
			out = append(out, []string{memnet.Address(n.id)})
		}
	}
	return out
}
