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
	// expectPage is the number of expected chunks read at once, and maxMissing the number of
	// missing ones that one slice queues. A slice with more is cut there, and the device reports
	// from there on.
	expectPage = 4096
	// queueItems bounds the chunks in one command that queues repairs.
	queueItems = 128
	// judgeCheck is the number of chunks that are judged between two looks at the clock.
	judgeCheck = 64
)

// Reports judges the devices' reports of their chunks.
type Reports struct {
	*lead.Term
	cfg    Config
	fleet  *fleet.Fleet
	leader Leader
	passes *passes
	strays *strays
}

// passes is the leader's memory of the devices' passes over all their chunks. If this leader did
// not see the start of a pass, it judges the pass but does not count it as complete.
type passes struct {
	mu       sync.Mutex
	byDevice map[uint32]*pass
	// quarantined are the unexplained chunks of each device in its last full pass, in order; listed
	// is their number.
	quarantined map[uint32][]*wire.QuarantinedChunk
	listed      int
}

// pass is what a device's pass has found so far.
type pass struct {
	started                     uint64 // log index after which it began
	from, next                  uint64 // first stripe of the last slice, and of the next one
	asked                       uint64 // reported end of the last slice; next may be before it
	unknownBytes, unknownChunks uint64
	fitting                     uint64 // chunks that fit a record and are not adopted
	ended                       bool   // its last slice has arrived
	unsettled                   uint64 // smallest log index of an explanation of a chunk that still exists; 0: none
	quarantined                 []*wire.QuarantinedChunk
}

func newPasses() *passes {
	return &passes{byDevice: make(map[uint32]*pass), quarantined: make(map[uint32][]*wire.QuarantinedChunk)}
}

// add adds a judged slice to its pass. It returns the pass if the slice was its last one. A slice
// that is sent again after a lost reply does not count twice. The last slice, which ends the pass,
// is kept until the next pass begins.
func (r *passes) add(slice *wire.ReportChunks, f *findings) *pass {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.byDevice[slice.Device]
	if p != nil && p.started == slice.PassStarted && p.from == slice.From && p.asked == slice.To {
		p.next = f.to(slice)
		p.settle(f)
		return p.whole() // record it again: that may be the step that failed
	}
	if slice.From == 0 {
		p = &pass{started: slice.PassStarted}
		r.byDevice[slice.Device] = p
	}
	if p == nil || p.ended || p.started != slice.PassStarted || p.next != slice.From {
		delete(r.byDevice, slice.Device) // this is not the next slice: the pass has a gap
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

// settle records the unsettled chunks of a slice.
func (p *pass) settle(f *findings) {
	if f.unsettled != 0 && (p.unsettled == 0 || f.unsettled < p.unsettled) {
		p.unsettled = f.unsettled
	}
}

// whole returns a copy of a pass that has ended; nil otherwise.
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
	quarantined           []*wire.QuarantinedChunk // unknown chunks
	adopt                 []*statepb.AdoptedChunk  // chunks that fit a record without such a chunk, or are later versions
	undecided             []*statepb.AdoptedChunk  // chunks that fit a record whose own device has not reported
	parity                []*wire.Stripe           // stripes whose parity is to be checked
	// cut is the stripe from which on nothing was judged because too much is missing before it; 0:
	// all was judged.
	cut uint64
}

// to returns the stripe up to which the slice was judged; 0: to the end.
func (f *findings) to(slice *wire.ReportChunks) uint64 {
	if f.cut != 0 {
		return f.cut
	}
	return slice.To
}

// ReportChunks judges a slice of a device's chunks. The device must delete dead ones. Recorded
// chunks that are missing or damaged are queued for repair. Unexplained ones are counted and left
// alone.
func (k *Reports) ReportChunks(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	slice := c.Req.GetReportChunks()
	if err := k.fleet.Topology.View().MayReport(c, slice.Device); err != nil {
		return nil, err
	}
	if err := checkSlice(slice); err != nil {
		return nil, err
	}
	if own := uint64(k.Cluster.Incarnation); slice.Incarnation != 0 && slice.Incarnation != own {
		return nil, &moraine.Error{Kind: moraine.Stale, Err: fmt.Errorf("the report began under incarnation %d of the metadata, but the current one is %d: start the report again", slice.Incarnation, own)}
	}
	if err := k.Store.ReadBarrier(ctx); err != nil {
		return nil, err
	}
	f := &findings{}
	err := k.Store.View(func(r kvtx.Reader, applied uint64) error {
		if err := behind(slice, applied); err != nil {
			return err
		}
		if err := k.findMissing(ctx, r, slice, f); err != nil {
			return err
		}
		if f.missing >= k.cfg.MaxMissing && !slice.Scrub {
			f.cutAt(f.repairs[len(f.repairs)-1].Stripe)
		}
		return k.judgeReported(ctx, r, slice, f)
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

// reasonMissing is the reason of a repair whose chunk its device did not report.
const reasonMissing = "missing"

// maxParity bounds the stripes of one slice whose parity is checked.
const maxParity = 256

// sampled reports whether a stripe is in the sample of a scrub's slice. Other passes sample other
// stripes.
func sampled(stripe uint64, slice *wire.ReportChunks) bool {
	if !slice.GetScrub() || slice.GetParitySample() == 0 {
		return false
	}
	const parts = 10_000
	b := binary.LittleEndian.AppendUint64(nil, stripe)
	return xxhash.Sum64(binary.LittleEndian.AppendUint64(b, slice.GetPassStarted()))%parts < uint64(slice.GetParitySample())
}

// sampleParity queues a check of a stripe's parity if the device has its first parity chunk.
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

// checkSlice refuses an invalid slice.
func checkSlice(slice *wire.ReportChunks) error {
	if len(slice.GetChunks()) > maxReport {
		return &moraine.Error{Kind: moraine.TooLarge, Err: fmt.Errorf("a slice of %d chunks is too large: %d at most", len(slice.Chunks), maxReport)}
	}
	if slice.GetTo() != 0 && slice.To <= slice.From {
		return &moraine.Error{Kind: moraine.InvalidArgument, Err: fmt.Errorf("invalid slice: from stripe %x to %x", slice.From, slice.To)}
	}
	return nil
}

// behind fails if the state is older than the one under which the report was made.
func behind(slice *wire.ReportChunks, applied uint64) error {
	if applied >= slice.PassStarted {
		return nil
	}
	return &moraine.Error{Kind: moraine.Unavailable, Err: fmt.Errorf("the report needs log entry %d, but this server is at entry %d: try again in a moment", slice.PassStarted, applied)}
}

// judgeReported judges the reported chunks. It ends early when ctx has ended.
// The sender repeats a request whose reply is late, and otherwise the
// judgements of all attempts would run at once.
func (k *Reports) judgeReported(ctx context.Context, r kvtx.Reader, slice *wire.ReportChunks, f *findings) error {
	began := k.Clock.Now()
	now, err := kvtx.ClusterTime(k.Machine.View(r))
	if err != nil {
		return err
	}
	grace := uint64(k.cfg.Grace.Milliseconds())
	waits, err := k.fleet.ReportsAwaited(r)
	if err != nil {
		return err
	}
	keep := waits || now < grace // nothing can have been dead long enough
	dead := now - min(grace, now)
	for i, chunk := range slice.Chunks {
		if f.cut != 0 && chunk.Stripe >= f.cut {
			continue
		}
		if i%judgeCheck == judgeCheck-1 {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if late := k.Clock.Since(began) > k.cfg.JudgeFor; late && !slice.Scrub && chunk.Stripe > slice.Chunks[0].Stripe {
				f.cutAt(chunk.Stripe)
				continue
			}
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

// findMissing finds the chunks that came to the device before its pass began and are not in the
// slice.
func (k *Reports) findMissing(ctx context.Context, r kvtx.Reader, slice *wire.ReportChunks, f *findings) error {
	held := make(map[moraine.ChunkID]struct{}, len(slice.Chunks))
	for _, c := range slice.Chunks {
		held[moraine.ChunkID{Stripe: moraine.StripeID(c.Stripe), Index: uint8(c.Index)}] = struct{}{}
	}
	from, to := moraine.StripeID(slice.From), moraine.StripeID(slice.To)
	for f.missing < k.cfg.MaxMissing {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		page, err := statefleet.ExpectedChunks(k.Machine.View(r), moraine.DeviceID(slice.Device), from, to, expectPage)
		if err != nil {
			return err
		}
		for _, e := range page {
			if _, ok := held[e.Chunk]; ok || e.Since > slice.PassStarted {
				continue
			}
			held[e.Chunk] = struct{}{} // pages may share a stripe
			f.missing++
			f.repairs = append(f.repairs, &statepb.RepairItem{Stripe: uint64(e.Chunk.Stripe), Index: uint32(e.Chunk.Index), Device: slice.Device, Reason: reasonMissing})
		}
		if len(page) < expectPage {
			return nil
		}
		from = page[len(page)-1].Chunk.Stripe
	}
	return nil
}

// cutAt leaves a stripe, and all after it, to the next slice.
func (f *findings) cutAt(stripe uint64) {
	f.cut = stripe
	left := f.repairs[:0]
	for _, r := range f.repairs {
		if r.Stripe < stripe {
			left = append(left, r)
		} else if r.Reason == reasonMissing {
			f.missing--
		}
	}
	f.repairs = left
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

// completeReport records that a pass over a device has ended. What ended before the pass began
// explains nothing on that device any more, except chunks that the pass found and that still exist.
func (k *Reports) completeReport(ctx context.Context, device uint32, p *pass) error {
	started := p.started
	if p.unsettled != 0 && started >= p.unsettled {
		started = p.unsettled - 1
	}
	if p.unknownChunks > 0 {
		k.Log.Warn("a device has chunks that no record explains; the cluster keeps them", "device", device, "chunks", p.unknownChunks, "bytes", p.unknownBytes)
	}
	_, err := k.Command(ctx, &statepb.Command{Op: &statepb.Command_CompleteReport{CompleteReport: &statepb.CompleteReport{
		Device: device, PassStarted: started, UnknownBytes: p.unknownBytes, UnknownChunks: p.unknownChunks, FittingChunks: p.fitting, Reported: p.started}}})
	return err
}
