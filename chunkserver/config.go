package chunkserver

import (
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

// Config is what an operator may set. Zero values are replaced by the defaults
// that are named beside them.
type Config struct {
	// Node is the host's id, as in its certificate; Rack its failure domain.
	Node, Rack string
	// Addresses are where clients reach it, AdminAddress where its metrics are.
	Addresses    []string
	AdminAddress string
	// Devices are its disks, each a directory that was made a device (disk.Format). One
	// without a device is an error on a host that the service does not know yet, and on any
	// other left out.
	Devices []DeviceConfig
	// Cluster is whom the devices must belong to. Zero: whoever answers.
	Cluster moraine.UUID
	// Release is told to the service, for people.
	Release string

	// MemoryBytes is all the memory for chunks: being received, being read, and
	// kept to be read again (1 GiB).
	MemoryBytes int64
	// DirtyBytes bounds what of it is chunks that are in memory alone (a quarter): who
	// brings more at level memory waits for the device.
	DirtyBytes int64
	// MemoryPath is a directory of a hugetlbfs or DAX file system, or a DAX device,
	// that the memory is to come from; empty: the machine's.
	MemoryPath string
	// MemoryNode is the NUMA node that the memory is to be on, counted from 1 on; 0:
	// any.
	MemoryNode int
	// Prefault has all of the memory taken at the start, so that a machine that does
	// not have it says so then.
	Prefault bool
	// Bucket is what Deps.Bucket serves, as s3://BUCKET/PREFIX; empty: none.
	Bucket string
	// PieceBytes bounds the pieces of objects in memory: being fetched, being
	// sent, and kept for the next who asks (256 MiB).
	PieceBytes int64
	// HeartbeatInterval is how often the service hears of the host (1 s).
	HeartbeatInterval time.Duration
	// ReportInterval is the longest pause between two reports of all chunks of a
	// device (1 h); with few chunks it is shorter. The first pass begins with the
	// first heartbeat.
	ReportInterval time.Duration
	// ScrubInterval is how often all that a device holds is read and verified
	// (7 days; negative: only when somebody asks for it), ScrubBytesPerSecond how
	// fast (32 MiB; negative: as fast as it goes).
	ScrubInterval       time.Duration
	ScrubBytesPerSecond int64
	// ScrubParity is in how many of 10,000 stripes a scrub compares the parity with the data
	// (100; negative: none).
	ScrubParity int
	// CorruptLimit is how many chunks of a device may be found corrupt within a
	// day; one more, and the device is given up (16; negative: any number).
	CorruptLimit int
}

// DeviceConfig is one device.
type DeviceConfig struct {
	// Dir is its directory.
	Dir string
	// CapacityBytes bounds what is kept there; 0: the file system's size.
	CapacityBytes uint64
	// SegmentBytes is the size of its segments; 0: what package disk takes.
	SegmentBytes int64
}

// Deps is what a test replaces.
type Deps struct {
	// Meta is the metadata service; it follows the leader and has a session.
	// Required.
	Meta transport.Metadata
	// Bucket is what objects are read from; nil: none.
	Bucket Bucket
	// Pace waits until the process may receive so many bytes more, and go on working:
	// before each object's piece that is read, and each chunk that is scrubbed. Default:
	// without limits.
	Pace func(ctx context.Context, bytes int64) error
	// CheckParity compares the parity of a stripe with its data, reports the parity chunks that
	// differ, and returns a bit for each. nil: scrubs do not compare it.
	CheckParity func(ctx context.Context, stripe *wire.Stripe) (wrong uint32, err error)
	// Probe opens a new, authenticated connection to one address of a server, and closes it.
	// nil: the server tries nobody.
	Probe func(ctx context.Context, role transport.Role, node, addr string) error
	FS    vfs.FS // default: the machine's
	// DiskHealth returns the health of the disks below a directory; nil where they report
	// none. It may hang as a disk does. Default: the machine's disks, where FS is.
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
	if c.MemoryBytes == 0 {
		c.MemoryBytes = defaultMemory
	}
	if c.PieceBytes == 0 {
		c.PieceBytes = defaultPieces
	}
	if c.HeartbeatInterval == 0 {
		c.HeartbeatInterval = defaultHeartbeat
	}
	if c.ReportInterval == 0 {
		c.ReportInterval = defaultReport
	}
	if c.ScrubInterval == 0 {
		c.ScrubInterval = defaultScrub
	}
	if c.ScrubBytesPerSecond == 0 {
		c.ScrubBytesPerSecond = defaultScrubRate
	}
	if c.ScrubParity == 0 {
		c.ScrubParity = defaultParity
	}
	if c.CorruptLimit == 0 {
		c.CorruptLimit = defaultCorrupt
	}
}

func (c *Config) validate() error {
	bad := func(text string) error {
		return &moraine.Error{Op: "chunkserver.New", Ref: c.Node, Kind: moraine.InvalidArgument, Err: errors.New(text)}
	}
	switch {
	case c.Node == "":
		return bad("a node id is needed")
	case len(c.Addresses) == 0:
		return bad("no address is known that clients reach it at")
	case len(c.Devices) == 0:
		return bad("no device is named")
	case c.MemoryBytes < 4*moraine.MaxChunkSize:
		return bad("less memory than four chunks of the greatest size (64 MiB)")
	case c.DirtyBytes < 0 || c.DirtyBytes > c.MemoryBytes*3/4:
		return bad("chunks that are in memory alone may take three quarters of the memory at most")
	case c.PieceBytes < 2*maxPiece:
		return bad("less memory for pieces of objects than two of them (32 MiB)")
	case c.HeartbeatInterval < 0 || c.ReportInterval < 0:
		return bad("an interval is negative")
	}
	seen := map[string]bool{}
	for _, d := range c.Devices {
		if d.Dir == "" || seen[d.Dir] {
			return bad("a device is named twice, or has no directory")
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
	if d.FS == nil {
		d.FS = vfs.OS{}
	}
	if d.Pace == nil {
		d.Pace = func(ctx context.Context, _ int64) error { return ctx.Err() }
	}
	if d.Clock == nil {
		d.Clock = clock.System{}
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Metrics == nil {
		d.Metrics = NewMetrics(nil)
	}
	if d.DiskMetrics == nil {
		d.DiskMetrics = disk.NewMetrics(nil)
	}
}
