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
// The parts of a Device are segmentSet (the segments and the counters of their
// space), index, appender (the write path), reader, reclaimer and ballast.
// While it opens there is recovering. failure has the error that took it out of
// service.
//
// Locks, outermost first: claims of chunks, appender.rolling, appender.mu,
// segmentSet.mu, segment.mu, reclaimer.mu. Only rolling and, while a file is opened,
// segment.mu are held across I/O.
package disk

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
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

	heads     *bufpool.Pool              // for heads; a holder of one waits for no other buffer
	scratch   *bufpool.Buffer            // used by the appender
	claims    claim.Set[moraine.ChunkID] // orders the records of a chunk as the changes of its index entry
	failure   *failure
	segments  *segmentSet
	index     *index
	app       *appender
	reader    *reader
	reclaim   *reclaimer
	ballast   *ballast
	recovered Recovery

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
	d.index.opened.Store(true)
	go d.reclaim.run()
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
	d := &Device{cfg: cfg, deps: deps, log: deps.Log.With("device", cfg.Dir), identity: identity, heads: heads, scratch: scratch}
	d.assemble()
	return d
}

// assemble makes the parts of a device.
func (d *Device) assemble() {
	cfg, deps, log := &d.cfg, &d.deps, d.log
	d.failure = &failure{cfg: cfg, deps: deps, log: log, failed: make(chan struct{})}
	d.segments = &segmentSet{deps: deps, failure: d.failure, byNumber: map[uint64]*segment{}}
	d.ballast = &ballast{cfg: cfg, deps: deps, log: log, failure: d.failure}
	d.index = &index{cfg: cfg, deps: deps, log: log, identity: d.identity, failure: d.failure, ballast: d.ballast}
	d.app = &appender{cfg: cfg, deps: deps, identity: d.identity, heads: d.heads, failure: d.failure, segments: d.segments, index: d.index,
		scratch: d.scratch.Bytes(), nextSegment: 1, flight: flight{next: 1}}
	d.reader = &reader{deps: deps, log: log, identity: d.identity, heads: d.heads, sums: newSumCache(cfg.SumCacheBytes),
		failure: d.failure, segments: d.segments}
	d.reclaim = &reclaimer{cfg: cfg, deps: deps, heads: d.heads, failure: d.failure, segments: d.segments, index: d.index, app: d.app,
		ballast: d.ballast, stop: make(chan struct{}), stopped: make(chan struct{})}
}

// start recovers the device.
func (d *Device) start() error {
	if err := d.ballast.keep(); err != nil {
		return err
	}
	if err := d.index.open(); err != nil {
		return err
	}
	rv := &recovering{cfg: &d.cfg, deps: &d.deps, log: d.log, identity: d.identity, heads: d.heads, failure: d.failure,
		segments: d.segments, index: d.index, app: d.app, reclaim: d.reclaim, found: Recovery{Rebuilt: d.index.rebuilt}}
	if err := rv.run(); err != nil {
		return err
	}
	d.recovered = rv.found
	if err := d.failure.err(); err != nil {
		return err // the index reported it in the background
	}
	d.log.Info("device opened", "uuid", d.identity.Device.String(), "chunks", d.segments.chunks.Load(),
		"live_bytes", d.segments.liveBytes.Load(), "scanned_segments", d.recovered.Segments,
		"torn_records", d.recovered.Torn, "corrupt_blocks", d.recovered.CorruptBlocks)
	return nil
}

// abandon releases the resources of a failed Open.
func (d *Device) abandon() {
	d.index.close()
	d.closeFiles()
}

func (d *Device) closeFiles() {
	d.segments.close()
	d.scratch.Release()
	d.heads.Close()
}

// Identity returns the identity of the device.
func (d *Device) Identity() Identity { return d.identity }

// Recovered returns what Open found.
func (d *Device) Recovered() Recovery { return d.recovered }

// Err implements tiers.Tier.
func (d *Device) Err() error { return d.failure.err() }

// Failed is closed when an error takes the device out of service.
func (d *Device) Failed() <-chan struct{} { return d.failure.failed }

// begin admits a call, which must call d.calls.Done at its end unless begin
// returned an error. Errors: Unavailable once the device is closed, IOError once it
// has failed.
func (d *Device) begin(op string) error {
	if e := d.failure.first.Load(); e != nil {
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
