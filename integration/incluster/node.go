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
	rng  *rand.Rand // of what cuts leave
	life atomic.Pointer[life]

	formatted atomic.Bool // its devices were made, and are registered
}

// life is one process of a node.
type life struct {
	node   *node
	net    *memnet.Node
	cancel context.CancelFunc
	ended  chan struct{}

	gone atomic.Bool // off the network, by a cut, a kill or Stop
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
	fs := vfs.NewFault(n.mem, func(op vfs.Op) error { return n.c.pass(l, op) })
	if n.role == transport.RoleMetadata {
		return n.buildMetadata(l, fs)
	}
	return n.buildChunkserver(l, fs)
}

// leave takes the node off the network, so that nothing that it says from now on
// is heard, and has its process end.
func (n *node) leave() {
	l := n.current()
	if l == nil || l.gone.Swap(true) {
		return
	}
	n.c.Net.Isolate(n.id)
	l.net.Close()
	l.cancel()
}

// stop asks the process to end.
func (n *node) stop() {
	if l := n.current(); l != nil {
		l.cancel()
	}
}

// wait returns when the present life, if any, has ended, and takes it off the
// network.
func (n *node) wait() {
	if l := n.current(); l != nil {
		<-l.ended
		n.leave()
	}
}

// Disk is the disk of a node in its present life, so that a test can damage what is
// on it.
func (c *Cluster) Disk(id string) *vfs.Mem { return c.named([]string{id})[0].mem }

// ChunkMetrics are those of a chunkserver's present process.
func (c *Cluster) ChunkMetrics(id string) *chunkserver.Metrics {
	return c.named([]string{id})[0].current().metrics
}

// SetDevices has a running chunkserver serve these directories of its disk, and no others.
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

// format makes the devices of a chunkserver that has never had any, as its operator does. It goes
// through fs, so that a cut, or a sync that is left out, meets it too; one that was cut short is
// made again in the next life.
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

// InUse is what a server says of its tables and bounded resources (InUse of package
// metadata and chunkserver).
func (c *Cluster) InUse(id string) map[string]int64 {
	return c.named([]string{id})[0].current().inUse()
}

// ChunkService is the service of a chunkserver's present process, for a test that serves
// it by other means than the cluster's network.
func (c *Cluster) ChunkService(id string) *chunkserver.Server {
	return c.named([]string{id})[0].current().service
}
