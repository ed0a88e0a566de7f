// Package fsck compares what the metadata says with what chunkservers hold, both ways,
// while the cluster works: chunks that stripe records say are on a device and are not,
// or are other bytes there, and chunks that nothing in the metadata explains.
//
// It changes nothing, but for Config.Repair and Drop. It reads no chunk: what the index of a device
// says is held against the records, and a scrub is what reads the bytes.
//
// One path through it: Run takes the devices of the cluster -> look asks the metadata
// service for its present log index, the chunkserver for a page of what it holds, and
// the service to judge that page by its rules for reports -> what it calls wrong is
// looked at again, after Config.Settle, under a new list and a later state -> what was
// wrong both times, in the same way, is in the Report. Writers, repairs and deletions
// are between two such states for moments only, so that they are not called wrong.
// What could not be asked is in the Report too: it is never taken for right, nor for
// missing.
package fsck

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// Config is what a person may set.
type Config struct {
	// Settle is how long after the first look the second one comes; 5 s.
	Settle time.Duration
	// Devices is how many are looked at at once; 4.
	Devices int
	// Path is what to check the stripes of, with all below it; empty: all that there
	// is. Of a path nothing can be unexplained.
	Path string
	// Repair: have what is missing or damaged put on the repair queue, as soon as it was
	// seen twice: later the word would be of chunks that were rebuilt meanwhile. What
	// nothing explains is not touched: reports of the devices go on to judge it, by the
	// service's rules.
	Repair bool
	// Accept: Drop is to follow. It is asked first whether the cluster can do that.
	Accept bool
}

// Deps is what a check works with.
type Deps struct {
	// Meta asks the metadata service, as an administrator.
	Meta func(context.Context, *wire.MetaRequest) (*wire.MetaResponse, error)
	// Chunks finds chunkservers.
	Chunks func(node string, addrs []string) transport.Chunks
	// Walk finds files, as client.Client does. Nil: no Path can be checked, and no file
	// that has lost bytes is named.
	Walk  func(ctx context.Context, root string, fn func(path string, attr *wire.Attr) error) error
	Clock clock.Clock
	// Progress is told of chunks that were looked at, and of how many there are in
	// all, as the devices said last; nil: nobody is.
	Progress func(done, total uint64)
}

const (
	// maxSuspects bounds what is remembered of the first look: with more, the report
	// says that there are more.
	maxSuspects = 1 << 20
	// askTimeout bounds one request to a chunkserver, and askTries how often it is
	// made, askPause apart: as long as a restart takes.
	askTimeout = 15 * time.Second
	askTries   = 4
	askPause   = 2 * time.Second
)

// Fault is what is wrong with a chunk.
type Fault string

const (
	// Missing: a record says that the device has it.
	Missing Fault = "missing"
	// Damaged: a record claims it, with another checksum or length.
	Damaged Fault = "damaged"
	// Unexplained: nothing explains it, and it is kept.
	Unexplained Fault = "unexplained"
	// Quarantined: unexplained, of an earlier incarnation of the metadata, whose
	// files it may belong to.
	Quarantined Fault = "quarantined"
)

// Finding is a chunk that is wrong.
type Finding struct {
	Fault   Fault
	Device  moraine.DeviceID
	Host    string
	Chunk   moraine.ChunkID
	Version moraine.LayoutVersion // that the device has; 0 where it has none
	Bytes   uint64
	// Scheme is the stripe's; none where there is no record of it.
	Scheme moraine.Scheme
	// Layout is the version of the record that it was held against; 0: there is none.
	Layout moraine.LayoutVersion
	// Queued: the stripe is on the repair queue already.
	Queued bool
}

// Repairable reports whether a repair can do something about it.
func (f *Finding) Repairable() bool { return f.Fault == Missing || f.Fault == Damaged }

// NotChecked is what could not be asked.
type NotChecked struct {
	Host    string // empty, and no devices: of what was checked as a whole
	Devices []moraine.DeviceID
	Why     string // a sentence, with what to do
}

// Report is what a check came to.
type Report struct {
	Devices               int // that were looked at to the end
	Chunks, Bytes         uint64
	Pending, PendingBytes uint64 // dead, or not committed yet
	// Findings are in order of device, stripe and index.
	Findings []Finding
	More     bool // there are more than these
	// Settled is how many more were wrong at the first look, and not at the second.
	Settled int
	// Reported is how many of the Findings were told to repair.
	Reported   int
	NotChecked []NotChecked
	// LostStripes are those that have fewer than k chunks left, by the Findings.
	LostStripes []moraine.StripeID
	// LostFiles are the files that these are of.
	LostFiles []File
}

// Clean reports whether everything was checked, and nothing is wrong.
func (r *Report) Clean() bool { return len(r.Findings) == 0 && len(r.NotChecked) == 0 && !r.More }

// Checker makes checks.
type Checker struct {
	cfg  Config
	deps Deps

	mu       sync.Mutex // guards what follows
	report   *Report
	chosen   *chosen // nil: all
	suspects int
	done     uint64
	total    uint64
	// unreported: the report says that devices have not reported.
	unreported bool
}

// New makes a Checker.
func New(cfg Config, deps Deps) *Checker {
	if cfg.Settle <= 0 {
		cfg.Settle = 5 * time.Second
	}
	if cfg.Devices <= 0 {
		cfg.Devices = 4
	}
	if deps.Clock == nil {
		deps.Clock = clock.System{}
	}
	return &Checker{cfg: cfg, deps: deps}
}

// Run checks every device. It fails where the metadata service does not answer, or is
// of an earlier release; what a chunkserver does not answer is in the report. A report
// beside an error is of what was found until then. One Run at a time.
func (c *Checker) Run(ctx context.Context) (*Report, error) {
	c.report, c.chosen, c.suspects, c.done, c.unreported = &Report{}, nil, 0, 0, false
	if err := c.able(ctx); err != nil {
		return nil, err
	}
	if c.cfg.Path != "" {
		var err error
		if c.chosen, err = c.choose(ctx, c.cfg.Path); err != nil {
			return nil, err
		}
		c.report.Chunks, c.report.Bytes = c.chosen.chunks, c.chosen.bytes
	}
	resp, err := c.deps.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
	if err != nil {
		return nil, err
	}
	devices := c.devicesOf(resp.GetCluster().GetTopology())
	err = c.each(ctx, devices, func(ctx context.Context, d *device) error { return c.firstLook(ctx, d) })
	if err != nil {
		return nil, err
	}
	if c.chosen != nil {
		if err := c.moved(ctx); err != nil {
			return nil, err
		}
	}
	err = c.confirm(ctx, devices)
	for _, d := range devices {
		if !d.failed {
			c.report.Devices++
		}
	}
	c.report.settle()
	if err == nil {
		err = c.nameLost(ctx)
	}
	return c.report, err
}

// able asks, before anything is looked at or changed, whether the service can do what is
// wanted.
func (c *Checker) able(ctx context.Context) error {
	if _, err := c.judge(ctx, nil); err != nil || !c.cfg.Accept {
		return err
	}
	_, err := c.deps.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_DropChunks{DropChunks: &wire.DropChunks{}}}) // of none
	return err
}

// confirm looks again, after a while, at what was wrong.
func (c *Checker) confirm(ctx context.Context, devices []*device) error {
	suspicious := slices.DeleteFunc(slices.Clone(devices), func(d *device) bool { return len(d.suspicious) == 0 || d.failed })
	if len(suspicious) == 0 {
		return nil
	}
	if err := c.pause(ctx, c.cfg.Settle); err != nil {
		return err
	}
	return c.each(ctx, suspicious, c.secondLook)
}

// devicesOf returns the devices to look at. Those of hosts that do not answer are not
// checked.
func (c *Checker) devicesOf(t *wire.Topology) []*device {
	var out []*device
	c.total = 0
	for _, h := range t.GetHosts() {
		for _, w := range h.Devices {
			d := &device{id: moraine.DeviceID(w.Id), host: h.Id, addresses: h.Addresses, ranges: []slice{{}}}
			if c.chosen != nil {
				d.ranges = c.chosen.ranges(d.id)
			}
			switch {
			case w.State == wire.DeviceState_DEVICE_STATE_RETIRED || len(d.ranges) == 0:
				continue
			case !h.Alive:
				c.fail(d, fmt.Sprintf("chunkserver %s does not answer: start it, or remove the host (`moraine drain %s`), and check again", h.Id, h.Id))
			}
			c.total += w.Chunks
			out = append(out, d)
		}
	}
	return out
}

// each calls fn for the devices that have not failed, some at once.
func (c *Checker) each(ctx context.Context, devices []*device, fn func(context.Context, *device) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(c.cfg.Devices)
	for _, d := range devices {
		if !d.failed {
			g.Go(func() error { return fn(ctx, d) })
		}
	}
	return g.Wait()
}

// fail notes that a device could not be checked.
func (c *Checker) fail(d *device, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d.failed = true
	for i := range c.report.NotChecked {
		if n := &c.report.NotChecked[i]; n.Host == d.host && n.Why == why {
			n.Devices = append(n.Devices, d.id)
			return
		}
	}
	c.report.NotChecked = append(c.report.NotChecked, NotChecked{Host: d.host, Devices: []moraine.DeviceID{d.id}, Why: why})
}

// progress counts chunks that were looked at.
func (c *Checker) progress(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done += uint64(n)
	if c.deps.Progress != nil {
		c.deps.Progress(c.done, max(c.total, c.done))
	}
}

func (c *Checker) pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.deps.Clock.After(d):
		return nil
	}
}

// settle puts the report in order, and finds the stripes that are lost by it.
func (r *Report) settle() {
	slices.SortFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.Chunk.Stripe, b.Chunk.Stripe), cmp.Compare(a.Chunk.Index, b.Chunk.Index))
	})
	slices.SortFunc(r.NotChecked, func(a, b NotChecked) int { return cmp.Compare(a.Host, b.Host) })
	bad := make(map[moraine.StripeID]int)
	for _, f := range r.Findings {
		if !f.Repairable() {
			continue
		}
		if bad[f.Chunk.Stripe]++; bad[f.Chunk.Stripe] == int(f.Scheme.M)+1 {
			r.LostStripes = append(r.LostStripes, f.Chunk.Stripe)
		}
	}
	slices.Sort(r.LostStripes)
}

// repair has what is missing or damaged put on the repair queue. It is told by the
// record that it was held against: where there is another one by now, the service
// passes over it.
func (c *Checker) repair(ctx context.Context, findings []Finding) error {
	const batch = 256 // what one request may tell of
	broken := slices.DeleteFunc(slices.Clone(findings), func(f Finding) bool { return !f.Repairable() })
	for some := range slices.Chunk(broken, batch) {
		op := &wire.ReportBadChunks{}
		for _, f := range some {
			kind := moraine.Corrupt
			if f.Fault == Missing {
				kind = moraine.NotFound
			}
			op.Chunks = append(op.Chunks, &wire.BadChunk{Stripe: uint64(f.Chunk.Stripe), Index: uint32(f.Chunk.Index), Device: uint32(f.Device),
				Version: uint32(f.Layout), AtVersion: true, Kind: uint32(kind)})
		}
		if _, err := c.deps.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ReportBadChunks{ReportBadChunks: op}}); err != nil {
			return err
		}
		c.mu.Lock()
		c.report.Reported += len(some)
		c.mu.Unlock()
	}
	return nil
}

// Drop has chunks deleted that nothing explains, also those of earlier incarnations, and
// returns how many will be: what they may have been of is lost. A chunk that something
// explains by now, or that has a number which no stripe was given yet, stays.
func (c *Checker) Drop(ctx context.Context, findings []Finding) (dropped int, err error) {
	const batch = 256 // what one request may name
	unexplained := slices.DeleteFunc(slices.Clone(findings), func(f Finding) bool { return f.Repairable() })
	for some := range slices.Chunk(unexplained, batch) {
		op := &wire.DropChunks{}
		for _, f := range some {
			op.Chunks = append(op.Chunks, &wire.DroppedChunk{Device: uint32(f.Device), Stripe: uint64(f.Chunk.Stripe), Index: uint32(f.Chunk.Index),
				Version: uint32(f.Version), Length: f.Bytes})
		}
		resp, err := c.deps.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_DropChunks{DropChunks: op}})
		if err != nil {
			return dropped, err
		}
		dropped += int(resp.GetDropChunks().GetDropped())
	}
	return dropped, nil
}

// earlier turns the answer of a server that does not know a request into one that says
// so.
func earlier(what string, err error) error {
	if errors.Is(err, moraine.Unimplemented) {
		return &moraine.Error{Op: "fsck", Kind: moraine.Unimplemented, Err: fmt.Errorf("%s is of an earlier release, which cannot be checked: upgrade it", what)}
	}
	return err
}
