package chunkserver

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/chunkserver/smart"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/disk"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// Config has the settings of an operator. Zero values mean the defaults given in
// parentheses.
type Config struct {
	// Node is the host's id, as in its certificate; Rack its failure domain.
	Node, Rack string
	// Addresses are where clients connect, AdminAddress is where metrics are
	// served.
	Addresses    []string
	AdminAddress string
	// Devices are the host's disks, each a directory formatted by disk.Format. A
	// directory without a device is an error on a host that is new to the cluster.
	// On any other host it is left out.
	Devices []DeviceConfig
	// Cluster is the cluster that the devices must belong to. Zero: that of the
	// metadata service that answers.
	Cluster moraine.UUID
	// Release is reported to the metadata service, for people.
	Release string

	// MemoryBytes is the memory for chunks: received, read, and cached (1 GiB).
	MemoryBytes int64
	// DirtyBytes limits the part of it for chunks that are only in memory (a
	// quarter). Beyond it, puts at level memory wait for the device.
	DirtyBytes int64
	// MemoryPath is the source of the memory: a directory of a hugetlbfs or DAX
	// file system, or a DAX device. Empty: the machine's memory.
	MemoryPath string
	// MemoryNode is the NUMA node of the memory, counted from 1; 0: any.
	MemoryNode int
	// Prefault allocates all of the memory at the start, so that a machine with too
	// little memory fails then.
	Prefault bool
	// Bucket is the bucket that Deps.Bucket serves, as s3://BUCKET/PREFIX; empty:
	// none.
	Bucket string
	// PieceBytes limits the pieces of objects in memory: fetched, sent, and cached
	// (256 MiB).
	PieceBytes int64
	// HeartbeatInterval is the time between two heartbeats (1 s).
	HeartbeatInterval time.Duration
	// ReportInterval is the longest pause between two reports of all chunks of a
	// device (1 h). With few chunks the pause is shorter. The first report begins
	// with the first heartbeat.
	ReportInterval time.Duration
	// ScrubInterval is how often a scrub reads and verifies everything on a device
	// (7 days; negative: only on request). ScrubBytesPerSecond is its rate (32 MiB;
	// negative: no limit).
	ScrubInterval       time.Duration
	ScrubBytesPerSecond int64
	// ScrubParity is for how many of 10,000 stripes a scrub compares the parity
	// with the data (100; negative: none).
	ScrubParity int
	// CorruptLimit is how many chunks of a device may be corrupt within a day. One
	// more, and the device goes out of service (16; negative: no limit).
	CorruptLimit int
}

// DeviceConfig is one device.
type DeviceConfig struct {
	// Dir is its directory.
	Dir string
	// CapacityBytes limits the space of chunks; 0: the size of the file system.
	CapacityBytes uint64
	// SegmentBytes is the size of its segments; 0: the default of package disk.
	SegmentBytes int64
}

// Deps are the dependencies that a test replaces.
type Deps struct {
	// Meta is the metadata service. It follows the leader and has a session.
	// Required.
	Meta transport.Metadata
	// Bucket is the source of objects; nil: none.
	Bucket Bucket
	// Pace waits until the process may receive more bytes and use more processor
	// time. The server calls it before it reads a piece of an object, and before it
	// scrubs a chunk. Default: no limits.
	Pace func(ctx context.Context, bytes int64) error
	// CheckParity compares the parity of a stripe with its data. It reports the
	// parity chunks that differ, and returns a bit for each. nil: scrubs do not
	// compare parity.
	CheckParity func(ctx context.Context, stripe *wire.Stripe) (wrong uint32, err error)
	// Probe opens a new, authenticated connection to one address of a server, and
	// closes it. nil: this server probes no other.
	Probe func(ctx context.Context, role transport.Role, node, addr string) error
	FS    vfs.FS // default: the machine's
	// DiskHealth returns the health of the disks below a directory; nil if they
	// report none. It may hang as long as a disk does. Default: the disks of the
	// machine that FS is on.
	DiskHealth func(dir string) *wire.DiskHealth
	Clock      clock.Clock
	Log        *slog.Logger
	Metrics    *Metrics
	// DiskMetrics are shared by all devices.
	DiskMetrics *disk.Metrics
}

const (
	defaultMemory    = 1 << 30
	defaultPieces    = 256 << 20
	defaultHeartbeat = time.Second
	defaultReport    = time.Hour
	defaultScrub     = 7 * 24 * time.Hour
	defaultScrubRate = 32 << 20
	defaultCorrupt   = 16
	// defaultParity is 1%.
	defaultParity = 100
)

func (c *Config) setDefaults() {
	c.MemoryBytes = cmp.Or(c.MemoryBytes, defaultMemory)
	c.PieceBytes = cmp.Or(c.PieceBytes, defaultPieces)
	c.HeartbeatInterval = cmp.Or(c.HeartbeatInterval, defaultHeartbeat)
	c.ReportInterval = cmp.Or(c.ReportInterval, defaultReport)
	c.ScrubInterval = cmp.Or(c.ScrubInterval, defaultScrub)
	c.ScrubBytesPerSecond = cmp.Or(c.ScrubBytesPerSecond, defaultScrubRate)
	c.ScrubParity = cmp.Or(c.ScrubParity, defaultParity)
	c.CorruptLimit = cmp.Or(c.CorruptLimit, defaultCorrupt)
}

func (c *Config) validate() error {
	bad := func(text string) error {
		return &moraine.Error{Op: "chunkserver.New", Ref: c.Node, Kind: moraine.InvalidArgument, Err: errors.New(text)}
	}
	switch {
	case c.Node == "":
		return bad("node id is missing: set Node")
	case len(c.Addresses) == 0:
		return bad("address for clients is missing: set Addresses")
	case len(c.Devices) == 0:
		return bad("no device given: set Devices")
	case c.MemoryBytes < 4*moraine.MaxChunkSize:
		return bad("chunk memory is below the minimum of four chunks of the largest size (64 MiB)")
	case c.DirtyBytes < 0 || c.DirtyBytes > c.MemoryBytes*3/4:
		return bad("chunks that are only in memory may use at most three quarters of the memory: lower DirtyBytes")
	case c.PieceBytes < 2*maxPiece:
		return bad("piece memory is below the minimum of two pieces (32 MiB)")
	case c.HeartbeatInterval < 0 || c.ReportInterval < 0:
		return bad("an interval is negative")
	}
	seen := map[string]bool{}
	for _, d := range c.Devices {
		if d.Dir == "" || seen[d.Dir] {
			return bad("device is listed twice, or has no directory")
		}
		seen[d.Dir] = true
	}
	return nil
}

func (d *Deps) setDefaults() {
	if d.DiskHealth == nil {
		d.DiskHealth = func(string) *wire.DiskHealth { return nil }
		if d.FS == nil {
			d.DiskHealth = smart.Read
		}
	}
	d.FS = cmp.Or[vfs.FS](d.FS, vfs.OS{})
	if d.Pace == nil {
		d.Pace = func(ctx context.Context, _ int64) error { return ctx.Err() }
	}
	d.Clock = cmp.Or[clock.Clock](d.Clock, clock.System{})
	d.Log = cmp.Or(d.Log, slog.New(slog.DiscardHandler))
	if d.Metrics == nil {
		d.Metrics = NewMetrics(nil)
	}
	if d.DiskMetrics == nil {
		d.DiskMetrics = disk.NewMetrics(nil)
	}
}
