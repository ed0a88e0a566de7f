package incluster

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/chunkserver"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/tiers/disk"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/memnet"
)

// node is one server of the cluster, through all its lives.
type node struct {
	c    *Cluster
	id   string
	role transport.Role
	mem  *vfs.Mem   // its disk in this life
	rng  *rand.Rand // decides what cuts leave
	life atomic.Pointer[life]

	formatted atomic.Bool // its devices are made and registered
}

// life is one process of a node.
type life struct {
	node   *node
	net    *memnet.Node
	cancel context.CancelFunc
	ended  chan struct{}

	gone atomic.Bool // disconnected, by a cut, a kill or Stop
	left *vfs.Mem    // its disk since a cut or kill; written under the power's gate

	store   metadata.Store      // of a metadata server
	service *chunkserver.Server // of a chunkserver
	metrics *chunkserver.Metrics
	healthy func() bool
	leads   func() bool
	inUse   func() map[string]int64
}

func (n *node) current() *life { return n.life.Load() }

// start begins a life on n.mem.
func (n *node) start() error {
	l := &life{node: n, ended: make(chan struct{}), leads: func() bool { return false }}
	run, err := n.build(l)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(n.c.ctx)
	l.cancel = cancel
	n.life.Store(l)
	go func() {
		defer close(l.ended)
		if err := run(ctx); err != nil && !l.gone.Load() {
			n.c.fail(fmt.Errorf("%s ended: %w", n.id, err))
		}
	}()
	return nil
}

func (n *node) build(l *life) (run func(context.Context) error, err error) {
	fs := vfs.NewFault(n.mem, func(op vfs.Op) error {
		n.c.power.pass(l)
		if n.c.opts.Rule != nil {
			return n.c.opts.Rule(n.id, op)
		}
		return nil
	})
	if n.role == transport.RoleMetadata {
		return n.buildMetadata(l, fs)
	}
	return n.buildChunkserver(l, fs)
}

// leave disconnects the node, so that nothing it sends from now on arrives, and
// ends its process.
func (n *node) leave() {
	l := n.current()
	if l == nil || l.gone.Swap(true) {
		return
	}
	n.c.Net.Isolate(n.id)
	l.net.Close()
	l.cancel()
}

// stop signals the process to end.
func (n *node) stop() {
	if l := n.current(); l != nil {
		l.cancel()
	}
}

// wait returns when the current life, if any, has ended, and disconnects it.
func (n *node) wait() {
	if l := n.current(); l != nil {
		<-l.ended
		n.leave()
	}
}

// Disk is the disk of a node in its current life, which a test may damage.
func (c *Cluster) Disk(id string) *vfs.Mem { return c.named([]string{id})[0].mem }

// ChunkMetrics are the metrics of a chunkserver's current process.
func (c *Cluster) ChunkMetrics(id string) *chunkserver.Metrics {
	return c.named([]string{id})[0].current().metrics
}

// SetDevices makes a running chunkserver use these directories of its disk, and no
// others.
func (c *Cluster) SetDevices(ctx context.Context, id string, dirs ...string) error {
	var devices []chunkserver.DeviceConfig
	for _, dir := range dirs {
		devices = append(devices, c.deviceConfig(dir))
	}
	return c.named([]string{id})[0].current().service.SetDevices(ctx, devices)
}

func (c *Cluster) deviceConfig(dir string) chunkserver.DeviceConfig {
	return chunkserver.DeviceConfig{Dir: dir, CapacityBytes: c.opts.CapacityBytes, SegmentBytes: c.opts.SegmentBytes}
}

// format makes the devices of a new chunkserver, as its operator does. It uses fs,
// so that a cut, or a sync that is left out, affects it too. An interrupted format
// is repeated in the next life.
func (n *node) format(fs vfs.FS) error {
	if n.formatted.Load() {
		return nil
	}
	for i := range n.c.opts.Devices {
		_, err := disk.Format(fs, fmt.Sprintf("/device%d", i+1), clusterID, crand.Reader)
		if err != nil && !errors.Is(err, moraine.Exists) {
			return err
		}
	}
	return nil
}

// FormatDevice makes a device of an empty directory of a node's disk.
func (c *Cluster) FormatDevice(id, dir string) error {
	_, err := disk.Format(c.Disk(id), dir, clusterID, crand.Reader)
	return err
}

// InUse is a server's report of its tables and limited resources (InUse of package
// metadata and chunkserver).
func (c *Cluster) InUse(id string) map[string]int64 {
	return c.named([]string{id})[0].current().inUse()
}

// ChunkService is the service of a chunkserver's current process, for a test that
// serves it over another network.
func (c *Cluster) ChunkService(id string) *chunkserver.Server {
	return c.named([]string{id})[0].current().service
}
