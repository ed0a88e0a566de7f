// Package disk keeps chunks on one device: a directory of a local file system,
// usually all of one disk. It implements tiers.Tier.
//
// The truth is a log: segment files of 1 GiB, preallocated, into which records
// are appended, each a head (record.go) and, behind it, a chunk's bytes padded
// to whole blocks. Everything else can be made again from the segments: the
// pebble index (index.go) finds a chunk's record and is never synced for its
// own sake. The package knows nothing of stripes, sessions or the network, and
// decides nothing about what to keep.
//
// One path through it: Put (put.go) claims the chunk, reserves room
// in the active segment (append.go), writes head and data around the page cache
// in one write, shares a sync with whoever else is writing (sync.go), sets the
// index entry, and returns. Get (get.go) looks the record up, reads the blocks
// that the range touches, and checks each against its sum.
//
// # Why a crash loses nothing that was acknowledged
//
// Put and Delete return after the sync of their record; a sync covers the
// record's head and data and the segment's size, and the segment's name was
// made durable before its first record (append.go). When a device is opened
// (recover.go) the segments that the index does not durably know whole are
// scanned in order, and what their records say is done again; each index entry
// keeps the sequence number of the record that made it, so that doing a record
// again changes nothing. A record that was being written when the power went
// may be torn; which records can be is told by the `durable` number in the
// heads after it, and only those that no later head vouches for are read and
// summed. A torn one is overwritten before anything new is written, so that a
// later head cannot vouch for it.
//
// A deletion is a record too (a tombstone), and so are the space's owner and
// its end: the space of a dead record is given back only after the record that
// killed it is durable, and the segment of the killing record counts as
// complete, and may be removed, only after that giving back is durable.
// Scanning all segments therefore never finds a dead chunk without its killer.
//
// Locks, outermost first: claims of chunks, appender.rolling, appender.mu,
// Device.segMu, segment.mu, reclaimer.mu. None but rolling and (while a file is opened) segment.mu is
// held across I/O.
package disk

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/bufpool"
	"github.com/morainefs/moraine/internal/claim"
	"github.com/morainefs/moraine/internal/limit"
	"github.com/morainefs/moraine/tiers"
)

// Device is an open device. Its methods may be called concurrently.
type Device struct {
	cfg      Config
	deps     Deps
	log      *slog.Logger
	identity Identity
	lock     io.Closer

	index    *index
	sums     *sumCache
	heads    *bufpool.Pool              // of heads; whoever holds one waits for no other buffer
	scratch  *bufpool.Buffer            // the appender's
	claims   claim.Set[moraine.ChunkID] // the order of a chunk's records is that of its changes in the index
	app      appender
	reclaim  reclaimer
	ballast  ballast
	recovery Recovery

	segMu    sync.RWMutex
	segments map[uint64]*segment

	liveBytes, deadBytes, chunks atomic.Int64
	reading                      atomic.Int32 // reads of the medium under way

	failure atomic.Pointer[moraine.Error]
	failed  chan struct{} // closed by the first failure
	opened  atomic.Bool   // set when Open has succeeded

	lifeMu sync.RWMutex // guards closed; calls.Add only under it
	closed bool
	calls  sync.WaitGroup
}

var (
	_ tiers.Tier    = (*Device)(nil)
	_ tiers.Viewer  = (*Device)(nil)
	_ tiers.Deleter = (*Device)(nil)
)

// Open opens the device in cfg.Dir and recovers what it holds. It begins the
// work in the background that Close ends. Errors are *moraine.Error: NotFound
// (not a device), WrongCluster, NewerFormat, Corrupt (the identity cannot be
// read), Busy (open elsewhere), InvalidArgument, NoSpace, IOError.
func Open(cfg Config, deps Deps) (*Device, error) {
	cfg.setDefaults()
	deps.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	identity, err := ReadIdentity(deps.FS, cfg.Dir)
	if err != nil {
		return nil, err
	}
	if !cfg.Cluster.IsZero() && identity.Cluster != cfg.Cluster {
		return nil, &moraine.Error{Op: "disk.Open", Ref: cfg.Dir, Kind: moraine.WrongCluster,
			Err: fmt.Errorf("the device belongs to cluster %s, not to %s", identity.Cluster, cfg.Cluster)}
	}
	lock, err := lockDevice(deps.FS, cfg.Dir)
	if err != nil {
		return nil, err
	}
	d := newDevice(cfg, deps, identity)
	err = d.start()
	if pebble.IsCorruptionError(err) {
		// Found only while the index was read. A note was left that has it
		// built again, from nothing.
		d.abandon()
		d = newDevice(cfg, deps, identity)
		err = d.start()
	}
	if err != nil {
		d.abandon()
		return nil, errors.Join(wrap("disk.Open", cfg.Dir, err), lock.Close())
	}
	d.lock = lock
	d.opened.Store(true)
	go d.runReclaim()
	return d, nil
}

// headPatience bounds how long a call waits for the buffer of a head, each of which is
// held for one read, or one write and its sync.
const headPatience = time.Minute

func newDevice(cfg Config, deps Deps, identity Identity) *Device {
	heads := bufpool.New(bufpool.Config{LimitBytes: bufpool.MaxSize, Wait: limit.Resource{
		Name: "buffers of record heads", Patience: headPatience, Advice: "the device is slow or hangs",
		Reports: limit.NewReporter(deps.Log, deps.Metrics.WaitsExceeded)}})
	scratch := heads.TryGet(block) // the first buffer of a pool is always to be had
	return &Device{
		cfg:      cfg,
		deps:     deps,
		log:      deps.Log.With("device", cfg.Dir),
		identity: identity,
		sums:     newSumCache(cfg.SumCacheBytes),
		heads:    heads,
		scratch:  scratch,
		app:      newAppender(scratch.Bytes()),
		reclaim:  newReclaimer(),
		segments: map[uint64]*segment{},
		failed:   make(chan struct{}),
	}
}

// start recovers the device.
func (d *Device) start() error {
	if err := d.keepBallast(); err != nil {
		return err
	}
	if err := d.openIndex(); err != nil {
		return err
	}
	if err := d.recover(); err != nil {
		return err
	}
	if err := d.Err(); err != nil {
		return err // found by the index, in the background
	}
	d.log.Info("device opened", "uuid", d.identity.Device.String(), "chunks", d.chunks.Load(),
		"live_bytes", d.liveBytes.Load(), "scanned_segments", d.recovery.Segments,
		"torn_records", d.recovery.Torn, "corrupt_blocks", d.recovery.CorruptBlocks)
	return nil
}

// abandon frees what a failed Open took.
func (d *Device) abandon() {
	d.closeIndex()
	d.closeFiles()
}

func (d *Device) closeFiles() {
	d.segMu.RLock()
	for _, s := range d.segments {
		s.retire()
	}
	d.segMu.RUnlock()
	d.scratch.Release()
	d.heads.Close()
}

// Identity returns whose device it is.
func (d *Device) Identity() Identity { return d.identity }

// Recovered tells what Open found.
func (d *Device) Recovered() Recovery { return d.recovery }

// Err implements tiers.Tier.
func (d *Device) Err() error {
	if e := d.failure.Load(); e != nil {
		return e
	}
	return nil
}

// Failed is closed when an error takes the device out of service.
func (d *Device) Failed() <-chan struct{} { return d.failed }

// fail takes the device out of service for good, and returns the IOError that
// every call answers from now on. After a failed write or sync nothing is known
// of what the medium holds, and the kernel reports such an error once: to try
// again would be to believe it.
func (d *Device) fail(op string, cause error) error {
	e := &moraine.Error{Op: op, Ref: d.cfg.Dir, Kind: moraine.IOError, Err: cause}
	if d.failure.CompareAndSwap(nil, e) {
		close(d.failed)
		d.deps.Metrics.Failures.Inc()
		d.log.Error("device taken out of service", "op", op, "err", cause)
	}
	return d.Err()
}

// begin admits a call, which must call d.calls.Done at its end unless it got an
// error: Unavailable once the device is closed, IOError once it has failed.
func (d *Device) begin(op string) error {
	if e := d.failure.Load(); e != nil {
		return e
	}
	d.lifeMu.RLock()
	defer d.lifeMu.RUnlock()
	if d.closed {
		return &moraine.Error{Op: op, Ref: d.cfg.Dir, Kind: moraine.Unavailable}
	}
	d.calls.Add(1)
	return nil
}

// Close implements tiers.Tier. It waits for the calls under way, and leaves the
// index knowing all segments, so that the next Open scans nothing. A second
// Close does nothing.
func (d *Device) Close() error {
	d.lifeMu.Lock()
	if d.closed {
		d.lifeMu.Unlock()
		return nil
	}
	d.closed = true
	d.lifeMu.Unlock()
	d.calls.Wait()
	close(d.reclaim.stop)
	<-d.reclaim.stopped
	d.closeFiles()
	return d.lock.Close()
}

// segment returns a segment by number, nil where it is gone.
func (d *Device) segment(number uint64) *segment {
	d.segMu.RLock()
	defer d.segMu.RUnlock()
	return d.segments[number]
}
