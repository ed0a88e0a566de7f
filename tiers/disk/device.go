// Package disk keeps chunks on one device: a directory of a local file system,
// usually a whole disk. It implements tiers.Tier. It has no knowledge of stripes,
// sessions or the network, and does not decide which chunks to keep.
//
// The source of truth is a log: segment files of 1 GiB, preallocated, to which the
// device appends records. A record is a head (record.go) followed by the bytes of a
// chunk, padded to whole blocks. The segments suffice to rebuild everything else.
// The pebble index (index.go) finds the record of a chunk; the device never syncs
// it for its own sake.
//
// One path through the package: Put (put.go) claims the chunk and reserves space in
// the active segment (append.go). It writes head and data with one write that
// bypasses the page cache, and shares a sync with other writers (sync.go). It then
// sets the index entry and returns. Get (get.go) looks the record up, reads the
// blocks that the range touches, and verifies each against its checksum.
//
// # Why a crash loses nothing that was acknowledged
//
// Put and Delete return after the sync of their record. That sync covers the
// record's head and data and the size of the segment. The name of the segment is
// durable before its first record (append.go).
//
// Open (recover.go) scans, in order, the segments that are not durably marked
// complete in the index, and replays their records. Each index entry keeps the
// sequence number of the record that made it, so a replay changes nothing that is
// already applied.
//
// A power cut may tear a record that is being written. The `durable` number in
// later heads tells which records can be torn. Recovery reads and checksums only
// records that no later head vouches for. It overwrites a torn record before it
// writes anything new, so that no later head can vouch for it.
//
// A deletion is a record too (a tombstone). The device reclaims the space of a dead
// record only after the record that killed it is durable. The segment of the
// killing record becomes complete, and removable, only after that reclaim is
// durable. A scan of all segments therefore never finds a dead chunk without the
// record that killed it.
//
// Locks, outermost first: claims of chunks, appender.rolling, appender.mu,
// Device.segMu, segment.mu, reclaimer.mu. Only rolling and, while a file is opened,
// segment.mu are held across I/O.
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
	heads    *bufpool.Pool              // for heads; a holder of one waits for no other buffer
	scratch  *bufpool.Buffer            // used by the appender
	claims   claim.Set[moraine.ChunkID] // orders the records of a chunk as the changes of its index entry
	app      appender
	reclaim  reclaimer
	ballast  ballast
	recovery Recovery

	segMu    sync.RWMutex
	segments map[uint64]*segment

	liveBytes, deadBytes, chunks atomic.Int64
	reading                      atomic.Int32 // reads of the medium in progress

	failure atomic.Pointer[moraine.Error]
	failed  chan struct{} // closed at the first failure
	opened  atomic.Bool   // set once Open succeeded

	lifeMu sync.RWMutex // guards closed; call calls.Add only while holding it
	closed bool
	calls  sync.WaitGroup
}

var (
	_ tiers.Tier    = (*Device)(nil)
	_ tiers.Viewer  = (*Device)(nil)
	_ tiers.Deleter = (*Device)(nil)
)

// Open opens the device in cfg.Dir and recovers its contents. It starts the
// background work, which Close ends. Errors are *moraine.Error: NotFound (not a
// device), WrongCluster, NewerFormat, Corrupt (the identity cannot be read), Busy
// (another process has it open), InvalidArgument, NoSpace, IOError.
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
		// The corruption showed only while Open read the index. A note on disk
		// makes the next Open rebuild the index.
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

// headPatience limits how long a call waits for the buffer of a head. Each buffer
// is held for one read, or for one write and its sync.
const headPatience = time.Minute

func newDevice(cfg Config, deps Deps, identity Identity) *Device {
	heads := bufpool.New(bufpool.Config{LimitBytes: bufpool.MaxSize, Wait: limit.Resource{
		Name: "buffers of record heads", Patience: headPatience, Advice: "the device is slow or hangs",
		Reports: limit.NewReporter(deps.Log, deps.Metrics.WaitsExceeded)}})
	scratch := heads.TryGet(block) // the first buffer of a pool is always free
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
		return err // the index reported it in the background
	}
	d.log.Info("device opened", "uuid", d.identity.Device.String(), "chunks", d.chunks.Load(),
		"live_bytes", d.liveBytes.Load(), "scanned_segments", d.recovery.Segments,
		"torn_records", d.recovery.Torn, "corrupt_blocks", d.recovery.CorruptBlocks)
	return nil
}

// abandon releases the resources of a failed Open.
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

// Identity returns the identity of the device.
func (d *Device) Identity() Identity { return d.identity }

// Recovered returns what Open found.
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

// fail takes the device out of service for good, and returns the IOError that every
// later call returns. After a failed write or sync the contents of the medium are
// unknown. The kernel reports such an error only once, so a retry could succeed
// falsely.
func (d *Device) fail(op string, cause error) error {
	e := &moraine.Error{Op: op, Ref: d.cfg.Dir, Kind: moraine.IOError, Err: cause}
	if d.failure.CompareAndSwap(nil, e) {
		close(d.failed)
		d.deps.Metrics.Failures.Inc()
		d.log.Error("device taken out of service", "op", op, "err", cause)
	}
	return d.Err()
}

// begin admits a call, which must call d.calls.Done at its end unless begin
// returned an error. Errors: Unavailable once the device is closed, IOError once it
// has failed.
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

// Close implements tiers.Tier. It waits for running calls. It marks all segments in
// the index, so that the next Open scans nothing. A second Close does nothing.
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

// segment returns a segment by number, or nil if it was removed.
func (d *Device) segment(number uint64) *segment {
	d.segMu.RLock()
	defer d.segMu.RUnlock()
	return d.segments[number]
}
