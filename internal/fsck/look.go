package fsck

import (
	"context"
	"errors"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// device is a device under check, used by one goroutine at a time.
type device struct {
	id        moraine.DeviceID
	host      string
	addresses []string
	failed    bool
	// since is the log index of the service's last answer. Chunks that reach the device after it
	// may be absent from the next list. 0: look must request it.
	since  uint64
	ranges []slice // to check
	// suspicious are the slices with findings of the first look.
	suspicious []*slice
}

// slice is a range of stripes of a device.
type slice struct {
	from, to uint64 // exclusive; 0: to the end
	suspects map[key]Finding
}

// key identifies the same finding in two looks.
type key struct {
	fault   Fault
	chunk   moraine.ChunkID
	version moraine.LayoutVersion
}

func (f *Finding) key() key { return key{f.Fault, f.Chunk, f.Version} }

// page is a range that the service judged at once.
type page struct {
	from, to uint64
	reply    *wire.CheckChunksReply
	held     int // number of chunks on the device
}

// listPage is the most chunks that a chunkserver lists at once.
const listPage = 4096

// errDevice is the error of a device that could not be checked.
var errDevice = errors.New("not checked")

// firstLook checks everything on a device, or the chosen part of it.
func (c *Checker) firstLook(ctx context.Context, d *device) error {
	for _, r := range d.ranges {
		err := c.look(ctx, d, r.from, r.to, func(p *page) { c.suspect(d, p) })
		if errors.Is(err, errDevice) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// suspect remembers the findings of a page for the second look.
func (c *Checker) suspect(d *device, p *page) {
	c.progress(p.held)
	s := &slice{from: p.from, to: p.to, suspects: make(map[key]Finding)}
	for _, f := range p.reply.Findings {
		if found := d.finding(f, p.reply.Incarnation); c.asked(&found) {
			s.suspects[found.key()] = found
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.report
	if c.chosen == nil {
		r.Chunks, r.Bytes = r.Chunks+p.reply.Live, r.Bytes+p.reply.LiveBytes
		r.Pending, r.PendingBytes = r.Pending+p.reply.Pending, r.PendingBytes+p.reply.PendingBytes
	}
	if c.suspects+len(s.suspects) > maxSuspects {
		r.More = true
		return
	}
	if c.suspects += len(s.suspects); len(s.suspects) > 0 {
		d.suspicious = append(d.suspicious, s)
	}
}

// asked reports whether a finding belongs to what is checked.
func (c *Checker) asked(f *Finding) bool {
	if c.chosen == nil {
		return true
	}
	_, ok := c.chosen.stripes[f.Chunk.Stripe]
	return ok && f.Repairable()
}

// secondLook checks the suspicious slices again. It reports what it finds again in the same
// way.
func (c *Checker) secondLook(ctx context.Context, d *device) error {
	d.since = 0 // use a later state
	for _, s := range d.suspicious {
		var again []Finding
		err := c.look(ctx, d, s.from, s.to, func(p *page) {
			for _, f := range p.reply.Findings {
				found := d.finding(f, p.reply.Incarnation)
				if _, ok := s.suspects[found.key()]; ok {
					again = append(again, found)
				}
			}
		})
		if errors.Is(err, errDevice) {
			return nil
		}
		if err != nil {
			return err
		}
		c.mu.Lock()
		c.report.Findings = append(c.report.Findings, again...)
		c.report.Settled += len(s.suspects) - len(again)
		c.mu.Unlock()
		if c.cfg.Repair {
			if err := c.repair(ctx, again); err != nil {
				return err
			}
		}
	}
	return nil
}

// look lets the service judge the stripes [from, to) of a device, page by page. Each list is
// newer than the last answer of the service, and the service judges it by a later state. So a
// chunk that arrived in between is not called missing. One that went in between is called
// unexplained, which is why there is a second look.
func (c *Checker) look(ctx context.Context, d *device, from, to uint64, each func(*page)) error {
	if d.since == 0 {
		begun, err := c.judge(ctx, nil)
		if err != nil {
			return err
		}
		d.since = begun.Applied
	}
	for {
		listed, err := c.list(ctx, d, from, to)
		if err != nil {
			return err
		}
		end, chunks := listed.To, listed.Chunks
		if to != 0 && (end == 0 || end > to) {
			end, chunks = to, below(chunks, to)
		}
		for {
			reply, err := c.judge(ctx, &wire.ReportChunks{Device: uint32(d.id), From: from, To: end, PassStarted: d.since, Chunks: chunks})
			if err != nil {
				return err
			}
			if reply.To == 0 {
				each(&page{from: from, to: end, reply: reply, held: len(chunks)})
				d.since = reply.Applied
				break
			}
			done := below(chunks, reply.To)
			each(&page{from: from, to: reply.To, reply: reply, held: len(done)})
			from, chunks = reply.To, chunks[len(done):]
		}
		if end == 0 || end == to {
			return nil
		}
		from = end
	}
}

// below returns the chunks, which are in order, of stripes below stripe.
func below(chunks []*wire.ChunkReport, stripe uint64) []*wire.ChunkReport {
	for i, c := range chunks {
		if c.Stripe >= stripe {
			return chunks[:i]
		}
	}
	return chunks
}

// judge asks the metadata service what is wrong with a slice; nil: only for its log index.
func (c *Checker) judge(ctx context.Context, slice *wire.ReportChunks) (*wire.CheckChunksReply, error) {
	resp, err := c.deps.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_CheckChunks{CheckChunks: &wire.CheckChunks{Slice: slice}}})
	if err != nil {
		return nil, err
	}
	reply := resp.GetCheckChunks()
	if reply.GetUnreported() > 0 {
		c.noteUnreported(reply.Unreported)
	}
	return reply, nil
}

// noteUnreported records, once, that missing chunks are not known yet.
func (c *Checker) noteUnreported(devices uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unreported {
		return
	}
	c.unreported = true
	c.report.NotChecked = append(c.report.NotChecked, NotChecked{Why: fmt.Sprintf("%d devices have not reported since the metadata was restored: "+
		"what is missing is known when they have; start the chunkservers that are down, and check again in some minutes", devices)})
}

// list requests a page of a device's chunks from its chunkserver. With to 0 it requests as many
// as the server returns, otherwise about as many as there are stripes below to. If the device
// cannot be checked it records that and returns errDevice.
func (c *Checker) list(ctx context.Context, d *device, from, to uint64) (*wire.ListedChunks, error) {
	server := c.deps.Chunks(d.host, d.addresses)
	req := &wire.StatDevices{List: &wire.ListChunks{Device: uint32(d.id), From: from}}
	if to != 0 {
		req.List.Limit = uint32(min(to-from, listPage)) + 1 // one more shows that the list is complete
	}
	var err error
	for try := range askTries {
		if try > 0 {
			if err := c.pause(ctx, askPause); err != nil {
				return nil, err
			}
		}
		askCtx, cancel := context.WithTimeout(ctx, askTimeout)
		var reply *wire.StatDevicesReply
		reply, err = server.Stat(askCtx, req)
		cancel()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err == nil {
			if reply.Listed == nil {
				c.fail(d, fmt.Sprintf("chunkserver %s answered without a list of chunks", d.host))
				return nil, errDevice
			}
			return reply.Listed, nil
		}
		if k := moraine.KindOf(err); k != moraine.Unavailable && k != moraine.Timeout && k != moraine.Internal {
			break
		}
	}
	c.fail(d, c.whyNot(d, err))
	return nil, errDevice
}

// whyNot says why a chunkserver did not list a device's chunks, and what to do.
func (c *Checker) whyNot(d *device, err error) string {
	switch moraine.KindOf(err) {
	case moraine.PermissionDenied, moraine.Unauthenticated:
		return fmt.Sprintf("chunkserver %s answers administrators only (%v): give the certificate of one", d.host, err)
	case moraine.IOError, moraine.Corrupt:
		return fmt.Sprintf("device %d of %s is out of service (%v): what it held is repaired from the others; replace it, and check again", d.id, d.host, err)
	default:
		return fmt.Sprintf("chunkserver %s did not tell what device %d holds (%v): see that it runs, and check again", d.host, d.id, err)
	}
}

// finding converts the service's finding on a chunk.
func (d *device) finding(w *wire.ChunkFinding, incarnation uint64) Finding {
	f := Finding{Device: d.id, Host: d.host, Chunk: moraine.ChunkID{Stripe: moraine.StripeID(w.Stripe), Index: uint8(w.Index)},
		Version: moraine.LayoutVersion(w.Version), Bytes: w.Length, Layout: moraine.LayoutVersion(w.Layout), Queued: w.Queued,
		Scheme: moraine.Scheme{K: uint8(w.GetScheme().GetK()), M: uint8(w.GetScheme().GetM())}}
	switch w.Fault {
	case wire.ChunkFault_CHUNK_FAULT_MISSING:
		f.Fault = Missing
	case wire.ChunkFault_CHUNK_FAULT_DAMAGED:
		f.Fault = Damaged
	default:
		f.Fault = Unexplained
		if uint64(moraine.ID(w.Stripe).Incarnation()) < incarnation {
			f.Fault = Quarantined
		}
	}
	return f
}
