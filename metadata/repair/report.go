package repair

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/cespare/xxhash/v2"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/fleet"
	"github.com/morainefs/moraine/metadata/lead"
	statefleet "github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// maxReport bounds the chunks in one slice of a report.
	maxReport = 16384
	// expectPage is how many expected chunks are read at once, and maxMissing
	// how many missing ones one slice queues: a slice with more is cut there, and the
	// device reports from there on.
	expectPage = 4096
	// queueItems bounds the chunks in one command that queues repairs.
	queueItems = 128
)

// Reports judges what devices say that they hold.
type Reports struct {
	*lead.Term
	cfg    Config
	fleet  *fleet.Fleet
	leader Leader
	passes *passes
	strays *strays
}

// passes is the leader's memory of the passes that devices make over all their
// chunks. A pass that this leader did not see from its start is judged, but not
// counted as complete.
type passes struct {
	mu       sync.Mutex
	byDevice map[uint32]*pass
	// quarantined are the chunks of each device that its last whole pass named and
	// nothing explains, in order; listed is how many they are.
	quarantined map[uint32][]*wire.QuarantinedChunk
	listed      int
}

// pass is what was found so far in a device's pass.
type pass struct {
	started                     uint64 // log index that it began after
	from, next                  uint64 // stripes that the last slice began with, and that the next must begin with
	asked                       uint64 // where the last slice said that it ended; next may be before that
	unknownBytes, unknownChunks uint64
	fitting                     uint64 // that fit a record, and are not adopted
	ended                       bool   // its last slice has come
	unsettled                   uint64 // least index of what explains a chunk that is still there; 0: none
	quarantined                 []*wire.QuarantinedChunk
}

func newPasses() *passes {
	return &passes{byDevice: make(map[uint32]*pass), quarantined: make(map[uint32][]*wire.QuarantinedChunk)}
}

// add takes a judged slice into its pass. It returns the pass where the slice
// was its last one. A slice that comes again, since the reply to it was lost, is
// not counted again; the last slice, which ends the pass, is kept until the next one begins.
func (r *passes) add(slice *wire.ReportChunks, f *findings) *pass {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.byDevice[slice.Device]
	if p != nil && p.started == slice.PassStarted && p.from == slice.From && p.asked == slice.To {
		p.next = f.to(slice)
		p.settle(f)
		return p.whole() // to be recorded again: that may be what failed
	}
	if slice.From == 0 {
		p = &pass{started: slice.PassStarted}
		r.byDevice[slice.Device] = p
	}
	if p == nil || p.ended || p.started != slice.PassStarted || p.next != slice.From {
		delete(r.byDevice, slice.Device) // not the slice that follows: the pass has a gap
		return nil
	}
	p.unknownBytes, p.unknownChunks = p.unknownBytes+f.unknownBytes, p.unknownChunks+f.unknown
	p.fitting += uint64(len(f.undecided))
	p.settle(f)
	p.quarantined = append(p.quarantined, f.quarantined[:min(len(f.quarantined), maxListed-len(p.quarantined))]...)
	to := f.to(slice)
	p.from, p.asked, p.next, p.ended = slice.From, slice.To, to, to == 0
	if p.ended {
		r.list(slice.Device, p)
	}
	return p.whole()
}

// settle notes what a slice has left unsettled.
func (p *pass) settle(f *findings) {
	if f.unsettled != 0 && (p.unsettled == 0 || f.unsettled < p.unsettled) {
		p.unsettled = f.unsettled
	}
}

// whole returns a copy of a pass that has ended, nil for any other.
func (p *pass) whole() *pass {
	if !p.ended {
		return nil
	}
	whole := *p
	return &whole
}

// findings is the judgement of one slice.
type findings struct {
	deletions             []*wire.Deletion
	repairs               []*statepb.RepairItem
	unknown, unknownBytes uint64
	missing               uint64
	damaged               uint64
	unsettled             uint64
	quarantined           []*wire.QuarantinedChunk // what is unknown
	adopt                 []*statepb.AdoptedChunk  // what fits a record that has no such chunk, or a later version of one that it has
	undecided             []*statepb.AdoptedChunk  // what fits a record whose own device has not reported
	parity                []*wire.Stripe           // to be checked
	// cut is the stripe from which on nothing was judged, as too much is missing below it;
	// 0: all was.
	cut uint64
}

// to is the stripe that the slice was judged up to; 0: to the end.
func (f *findings) to(slice *wire.ReportChunks) uint64 {
	if f.cut != 0 {
		return f.cut
	}
	return slice.To
}

// ReportChunks judges a slice of what a device holds: what is dead is to be
// deleted, what is recorded and not there, or damaged, is queued for repair,
// and what nothing explains is counted and left alone.
func (k *Reports) ReportChunks(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	slice := c.Req.GetReportChunks()
	if err := k.fleet.Topology.View().MayReport(c, slice.Device); err != nil {
		return nil, err
	}
	if err := checkSlice(slice); err != nil {
		return nil, err
	}
	if own := uint64(k.Cluster.Incarnation); slice.Incarnation != 0 && slice.Incarnation != own {
		return nil, &moraine.Error{Kind: moraine.Stale, Err: fmt.Errorf("the report was begun under incarnation %d of the metadata, and this is %d: begin it again", slice.Incarnation, own)}
	}
	if err := k.Store.ReadBarrier(ctx); err != nil {
		return nil, err
	}
	f := &findings{}
	err := k.Store.View(func(r kvtx.Reader, applied uint64) error {
		if err := behind(slice, applied); err != nil {
			return err
		}
		if err := k.findMissing(r, slice, f); err != nil {
			return err
		}
		if f.missing >= k.cfg.MaxMissing && !slice.Scrub {
			f.cutAtLast()
		}
		return k.judgeReported(r, slice, f)
	})
	if err != nil {
		return nil, err
	}
	k.Metrics.UnknownChunks.Add(float64(f.unknown))
	k.Metrics.MissingChunks.Add(float64(f.missing))
	k.Metrics.Deletions.Add(float64(len(f.deletions)))
	if err := k.queueRepairs(ctx, f.repairs); err != nil {
		return nil, err
	}
	k.strays.add(f.undecided)
	if err := k.adopt(ctx, f.adopt); err != nil {
		return nil, err
	}
	if slice.Scrub {
		k.Metrics.DamagedChunks.Add(float64(f.damaged))
	} else if p := k.passes.add(slice, f); p != nil {
		if err := k.completeReport(ctx, slice.Device, p); err != nil {
			return nil, err
		}
	}
	if err := k.leader.PermitStripes(c, f.parity); err != nil {
		return nil, err
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_ReportChunks{ReportChunks: &wire.ReportChunksReply{
		Deletions: f.deletions, Unknown: f.unknown, Missing: f.missing, Damaged: f.damaged, To: f.cut, CheckParity: f.parity}}}, nil
}

// maxParity bounds the stripes of one slice whose parity is checked.
const maxParity = 256

// sampled reports whether a stripe is of the sample of a scrub's slice. Another pass takes
// others.
func sampled(stripe uint64, slice *wire.ReportChunks) bool {
	if !slice.GetScrub() || slice.GetParitySample() == 0 {
		return false
	}
	const parts = 10_000
	b := binary.LittleEndian.AppendUint64(nil, stripe)
	return xxhash.Sum64(binary.LittleEndian.AppendUint64(b, slice.GetPassStarted()))%parts < uint64(slice.GetParitySample())
}

// sampleParity has the parity of a stripe checked by whoever holds its first parity chunk.
func (k *Reports) sampleParity(r kvtx.Reader, chunk *wire.ChunkReport, f *findings) error {
	w, err := statefleet.WireStripe(k.Machine.View(r), moraine.StripeID(chunk.Stripe))
	if err != nil || w == nil {
		return err
	}
	if w.GetScheme().GetK() > 1 && chunk.Index == w.GetScheme().GetK() {
		f.parity = append(f.parity, w)
	}
	return nil
}

// checkSlice refuses a slice that makes no sense.
func checkSlice(slice *wire.ReportChunks) error {
	if len(slice.GetChunks()) > maxReport {
		return &moraine.Error{Kind: moraine.TooLarge, Err: fmt.Errorf("%d chunks in one slice; at most %d", len(slice.Chunks), maxReport)}
	}
	if slice.GetTo() != 0 && slice.To <= slice.From {
		return &moraine.Error{Kind: moraine.InvalidArgument, Err: fmt.Errorf("a slice from stripe %x to %x", slice.From, slice.To)}
	}
	return nil
}

// behind fails where a state is older than the one that a report was made under.
func behind(slice *wire.ReportChunks, applied uint64) error {
	if applied >= slice.PassStarted {
		return nil
	}
	return &moraine.Error{Kind: moraine.Unavailable, Err: fmt.Errorf("the report was made under entry %d, and this server is at %d", slice.PassStarted, applied)}
}

// judgeReported judges the chunks that a device says it holds.
func (k *Reports) judgeReported(r kvtx.Reader, slice *wire.ReportChunks, f *findings) error {
	now, err := kvtx.ClusterTime(k.Machine.View(r))
	if err != nil {
		return err
	}
	grace := uint64(k.cfg.Grace.Milliseconds())
	waits, err := k.fleet.ReportsAwaited(r)
	if err != nil {
		return err
	}
	keep := waits || now < grace // nothing can have been dead for long enough
	dead := now - min(grace, now)
	for _, chunk := range slice.Chunks {
		if f.cut != 0 && chunk.Stripe >= f.cut {
			continue
		}
		v, err := statefleet.ClassifyChunk(k.Machine.View(r), moraine.DeviceID(slice.Device), chunk, dead)
		if err != nil {
			return err
		}
		if v.Fate == statefleet.Live && sampled(chunk.Stripe, slice) && len(f.parity) < maxParity {
			if err := k.sampleParity(r, chunk, f); err != nil {
				return err
			}
		}
		switch {
		case v.Fate == statefleet.Dead && !keep:
			f.deletions = append(f.deletions, &wire.Deletion{Device: slice.Device, Stripe: chunk.Stripe, Index: chunk.Index, Below: uint32(v.Below)})
		case v.Fate == statefleet.Damaged:
			f.damaged++
			f.repairs = append(f.repairs, &statepb.RepairItem{Stripe: chunk.Stripe, Index: chunk.Index, Device: slice.Device, Version: chunk.Version, Reason: "corrupt"})
		case v.Fate == statefleet.Wanted, v.Fate == statefleet.Superseded:
			f.adopt = append(f.adopt, &statepb.AdoptedChunk{Device: slice.Device, Chunk: chunk})
		case v.Fate == statefleet.Undecided:
			f.undecided = append(f.undecided, &statepb.AdoptedChunk{Device: slice.Device, Chunk: chunk})
		case v.Fate == statefleet.Unknown:
			f.unknown++
			f.unknownBytes += chunk.Length
			f.quarantined = append(f.quarantined, &wire.QuarantinedChunk{Device: slice.Device, Stripe: chunk.Stripe, Index: chunk.Index,
				Length: chunk.Length, Incarnation: uint64(moraine.ID(chunk.Stripe).Incarnation())})
		}
		if v.Unsettled != 0 && (f.unsettled == 0 || v.Unsettled < f.unsettled) {
			f.unsettled = v.Unsettled
		}
	}
	return nil
}

// findMissing finds the chunks that came to the device before its pass began
// and are not in the slice.
func (k *Reports) findMissing(r kvtx.Reader, slice *wire.ReportChunks, f *findings) error {
	held := make(map[moraine.ChunkID]struct{}, len(slice.Chunks))
	for _, c := range slice.Chunks {
		held[moraine.ChunkID{Stripe: moraine.StripeID(c.Stripe), Index: uint8(c.Index)}] = struct{}{}
	}
	from, to := moraine.StripeID(slice.From), moraine.StripeID(slice.To)
	for f.missing < k.cfg.MaxMissing {
		page, err := statefleet.ExpectedChunks(k.Machine.View(r), moraine.DeviceID(slice.Device), from, to, expectPage)
		if err != nil {
			return err
		}
		for _, e := range page {
			if _, ok := held[e.Chunk]; ok || e.Since > slice.PassStarted {
				continue
			}
			held[e.Chunk] = struct{}{} // pages may overlap by a stripe
			f.missing++
			f.repairs = append(f.repairs, &statepb.RepairItem{Stripe: uint64(e.Chunk.Stripe), Index: uint32(e.Chunk.Index), Device: slice.Device, Reason: "missing"})
		}
		if len(page) < expectPage {
			return nil
		}
		from = page[len(page)-1].Chunk.Stripe
	}
	return nil
}

// cutAtLast leaves the last stripe of which a chunk is missing, and what comes after it, to
// the next slice.
func (f *findings) cutAtLast() {
	f.cut = f.repairs[len(f.repairs)-1].Stripe
	for len(f.repairs) > 0 && f.repairs[len(f.repairs)-1].Stripe == f.cut {
		f.repairs, f.missing = f.repairs[:len(f.repairs)-1], f.missing-1
	}
}

func (k *Reports) queueRepairs(ctx context.Context, items []*statepb.RepairItem) error {
	for len(items) > 0 {
		n := min(len(items), queueItems)
		if _, err := k.Command(ctx, &statepb.Command{Op: &statepb.Command_QueueRepairs{
			QueueRepairs: &statepb.QueueRepairs{Items: items[:n]}}}); err != nil {
			return err
		}
		items = items[n:]
	}
	return nil
}

// completeReport records that a pass over a device has ended: what ended before
// it began explains nothing on that device any more, except chunks that it met
// and that are still there.
func (k *Reports) completeReport(ctx context.Context, device uint32, p *pass) error {
	started := p.started
	if p.unsettled != 0 && started >= p.unsettled {
		started = p.unsettled - 1
	}
	if p.unknownChunks > 0 {
		k.Log.Warn("a device holds chunks that nothing explains; they are kept", "device", device, "chunks", p.unknownChunks, "bytes", p.unknownBytes)
	}
	_, err := k.Command(ctx, &statepb.Command{Op: &statepb.Command_CompleteReport{CompleteReport: &statepb.CompleteReport{
		Device: device, PassStarted: started, UnknownBytes: p.unknownBytes, UnknownChunks: p.unknownChunks, FittingChunks: p.fitting, Reported: p.started}}})
	return err
}
