// Package fsck compares the metadata with what chunkservers store, both ways, while the cluster
// works. It finds chunks that a stripe record places on a device that lacks them or has other
// bytes. It also finds chunks that nothing in the metadata explains.
//
// It changes nothing, except for Config.Repair and Drop. It reads no chunk: it compares each
// device's index with the records; a scrub reads the bytes.
//
// One path through it: Run takes the devices of the cluster. For each page, look gets the
// current log index from the metadata service and a list of chunks from the chunkserver. The
// service judges the list by its rules for reports. After Config.Settle, secondLook checks the
// suspicious slices again, with a new list and a later state. The Report contains what was
// wrong both times in the same way. Writers, repairs and deletions are between two states only
// for moments, so the check does not report them. The Report also names what could not be
// checked: it counts neither as right nor as missing.
package fsck

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// Config is what an operator may set.
type Config struct {
	// Settle is the time between the first look and the second; 5 s.
	Settle time.Duration
	// Devices is how many devices are checked at once; 4.
	Devices int
	// Path limits the check to the stripes of this path and all below it; empty: everything. With
	// a path no chunk can be unexplained.
	Path string
	// Repair puts missing or damaged chunks on the repair queue, as soon as the second look
	// confirms them. Later, they might have been rebuilt meanwhile. It does not touch unexplained
	// chunks: the service still judges them by the devices' reports.
	Repair bool
	// Accept says that Drop will follow. The check then first asks whether the cluster supports
	// it.
	Accept bool
}

// Deps are what a check works with.
type Deps struct {
	// Meta sends a request to the metadata service, as an administrator.
	Meta func(context.Context, *wire.MetaRequest) (*wire.MetaResponse, error)
	// Chunks returns the chunkserver of a host.
	Chunks func(node string, addrs []string) transport.Chunks
	// Walk finds files, as client.Client does. Nil: Path must be empty, and the report names no
	// files that have lost bytes.
	Walk  func(ctx context.Context, root string, fn func(path string, attr client.Attr) error) error
	Clock clock.Clock
	// Progress is called with the number of chunks checked, and of all chunks as the devices last
	// reported. May be nil.
	Progress func(done, total uint64)
}

const (
	// maxSuspects bounds the findings that the first look remembers; the report says if there are
	// more.
	maxSuspects = 1 << 20
	// askTimeout bounds one request to a chunkserver. askTries is how often it is made, askPause
	// apart: together as long as a restart takes.
	askTimeout = 15 * time.Second
	askTries   = 4
	askPause   = 2 * time.Second
)

// Fault is the kind of damage of a chunk.
type Fault string

const (
	// Missing: a record places it on the device, which lacks it.
	Missing Fault = "missing"
	// Damaged: the device has it with another checksum or length than the record.
	Damaged Fault = "damaged"
	// Unexplained: nothing explains it; the cluster keeps it.
	Unexplained Fault = "unexplained"
	// Quarantined: unexplained, and from an earlier incarnation of the metadata, whose files it
	// may belong to.
	Quarantined Fault = "quarantined"
)

// Finding is a chunk with a fault.
type Finding struct {
	Fault   Fault
	Device  moraine.DeviceID
	Host    string
	Chunk   moraine.ChunkID
	Version moraine.LayoutVersion // on the device; 0 if it has none
	Bytes   uint64
	// Scheme is the stripe's; zero if there is no record.
	Scheme moraine.Scheme
	// Layout is the version of the record that the chunk was compared with; 0: there is none.
	Layout moraine.LayoutVersion
	// Queued: the stripe is already on the repair queue.
	Queued bool
}

// Repairable reports whether a repair can fix it.
func (f *Finding) Repairable() bool { return f.Fault == Missing || f.Fault == Damaged }

// NotChecked names devices that could not be checked.
type NotChecked struct {
	Host    string // empty, without devices: concerns the whole check
	Devices []moraine.DeviceID
	Why     string // a sentence, with what to do
}

// Report is the result of a check.
type Report struct {
	Devices               int // checked completely
	Chunks, Bytes         uint64
	Pending, PendingBytes uint64 // dead, or not committed yet
	// Findings are in order of device, stripe and index.
	Findings []Finding
	More     bool // there are more findings than these
	// Settled is how many faults the first look found and the second did not.
	Settled int
	// Reported is how many of the Findings were put on the repair queue.
	Reported   int
	NotChecked []NotChecked
	// LostStripes are those with fewer than k chunks left, by the Findings.
	LostStripes []moraine.StripeID
	// LostFiles are the files of LostStripes.
	LostFiles []File
}

// Clean reports whether everything was checked, and nothing is wrong.
func (r *Report) Clean() bool { return len(r.Findings) == 0 && len(r.NotChecked) == 0 && !r.More }

// Checker makes checks.
type Checker struct {
	cfg  Config
	deps Deps

	mu       sync.Mutex // guards the fields below
	report   *Report
	chosen   *chosen // nil: everything
	suspects int
	done     uint64
	total    uint64
	// unreported: the report already says that devices have not reported.
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
	deps.Clock = cmp.Or[clock.Clock](deps.Clock, clock.System{})
	return &Checker{cfg: cfg, deps: deps}
}

// Run checks every device. It fails if the metadata service does not answer; the report names
// chunkservers that do not answer. With an error the report
// contains what was found so far, or is nil. Only one Run at a time.
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

// able checks that the service supports the operation, before anything is checked or changed.
func (c *Checker) able(ctx context.Context) error {
	if _, err := c.judge(ctx, nil); err != nil || !c.cfg.Accept {
		return err
	}
	_, err := c.deps.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_DropChunks{DropChunks: &wire.DropChunks{}}}) // no chunks
	return err
}

// confirm checks the suspicious devices again, after Config.Settle.
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

// devicesOf returns the devices to check. Those of hosts that do not answer are marked as
// failed.
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

// each calls fn for the devices that have not failed, several at once.
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

// fail records that a device could not be checked.
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

// progress counts checked chunks.
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

// settle sorts the report, and finds the stripes that are lost by its findings.
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

// repair puts missing or damaged chunks on the repair queue. The request names the record with
// which each was compared; if there is a newer one, the service ignores the entry.
func (c *Checker) repair(ctx context.Context, findings []Finding) error {
	const batch = 256 // bound of one request
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

// Drop deletes unexplained chunks, also those of earlier incarnations, and returns how many
// will be deleted. The files that they may belong to are then lost. The service keeps a chunk
// that has an explanation by now, or whose stripe number was never granted.
func (c *Checker) Drop(ctx context.Context, findings []Finding) (dropped int, err error) {
	const batch = 256 // bound of one request
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
