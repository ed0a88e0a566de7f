package stripeio

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

// errResubmit says that the client must write the stripe again under another number, perhaps
// with another scheme. Under the same number, chunks already put would differ from the new ones.
var errResubmit = errors.New("stripe must be resubmitted")

// putter puts the chunks of one stripe and replaces devices that fail or are slow.
type putter struct {
	c      *Engine
	ticket *Ticket
	st     *Stripe
	level  moraine.Level
	step   moraine.InodeID // see Sender.DeferFor
	place  placement

	failed []moraine.DeviceID // devices that failed for this stripe, in this round
	rounds int                // times that every device had failed

	chunks  []putChunk
	results chan putResult
	sending sync.WaitGroup
	began   time.Time
}

// putChunk is the state of one chunk of the stripe.
type putChunk struct {
	try     int // number of requests; only the last one's result counts
	cancel  context.CancelFunc
	done    bool
	took    time.Duration
	renewed bool // the token was renewed once for it
	state   wire.ChunkState
}

type putResult struct {
	index, try int
	reply      *wire.PutChunkReply
	err        error
}

// putStripe puts the chunks of an encoded stripe on the devices of the placement, and returns
// the record to commit. When it returns nil every chunk is at the level. On error some may be,
// and the end of the grant explains them. It may return errResubmit.
func (e *Engine) putStripe(ctx context.Context, t *Ticket, st *Stripe, place placement, level moraine.Level, step moraine.InodeID) (*wire.Stripe, error) {
	n := st.scheme.Chunks()
	if err := e.writing.take(ctx, int64(n)*st.chunkLen); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	p := &putter{c: e, ticket: t, st: st, level: level, step: step, place: place, chunks: make([]putChunk, n),
		results: make(chan putResult, n), began: e.clock.Now()}
	defer p.sending.Wait() // nothing reads the stripe's memory after we return
	defer cancel()
	if err := p.run(ctx); err != nil {
		return nil, err
	}
	rec := &wire.Stripe{Id: uint64(t.stripe), Scheme: wire.SchemeToWire(st.scheme), Version: 1, Tenant: t.Grant.tenant,
		Length: uint64(st.Length), Chunks: make([]*wire.ChunkState, n)}
	for i := range p.chunks {
		rec.Chunks[i] = &p.chunks[i].state
	}
	e.metrics.WrittenBytes.Add(float64(st.Length))
	return rec, nil
}

func (p *putter) run(ctx context.Context) error {
	for i := range p.chunks {
		p.send(ctx, i)
	}
	var slow <-chan time.Time
	for left := len(p.chunks); left > 0; {
		select {
		case r := <-p.results:
			if ok, err := p.take(ctx, r); err != nil {
				return err
			} else if !ok {
				continue
			}
			left--
			if slow == nil && left > 0 && left <= max(1, int(p.st.scheme.M)) {
				slow = p.c.clock.After(p.slowAfter())
			}
		case <-slow:
			p.replaceSlow(ctx)
			slow = make(chan time.Time) // once
		case <-ctx.Done():
			return retry.ContextError(ctx, "put stripe")
		}
	}
	return nil
}

// take processes a result; true: one more chunk is done.
func (p *putter) take(ctx context.Context, r putResult) (bool, error) {
	ch := &p.chunks[r.index]
	if r.try != ch.try || ch.done {
		return false, nil // from a device that was replaced
	}
	ch.cancel()
	dev := p.place.devices[r.index]
	if r.err == nil {
		ch.done, ch.took = true, p.c.clock.Now().Sub(p.began)
		ch.state = wire.ChunkState{Device: uint32(dev), Crc: p.st.sums[r.index], Level: r.reply.Level, Epoch: r.reply.Epoch}
		p.c.health.good(dev)
		p.c.metrics.ChunksPut.Inc()
		return true, nil
	}
	if ctx.Err() != nil {
		return false, retry.ContextErrorAfter(ctx, "put stripe", r.err)
	}
	p.c.metrics.ChunkErrors.WithLabelValues("put", moraine.KindOf(r.err).String()).Inc()
	p.c.log.Debug("a chunk could not be put", "stripe", p.ticket.stripe, "index", r.index, "device", dev, "err", r.err)
	switch moraine.KindOf(r.err) {
	case moraine.Unauthenticated, moraine.PermissionDenied:
		if !ch.renewed { // the token may be outdated
			ch.renewed = true
			p.ticket.Grant.capability.refused()
			if err := p.c.meta.Renew(ctx, true); err != nil {
				return false, err
			}
			if p.ticket.Grant.Session != p.c.meta.Current() { // the grant ended with the session
				return false, &moraine.Error{Op: "put stripe", Ref: p.ticket.stripe.String(), Kind: moraine.SessionExpired, Err: r.err}
			}
			p.send(ctx, r.index)
			return false, nil
		}
		if retry.IsKind(r.err, moraine.PermissionDenied) {
			return false, r.err
		}
	case moraine.InvalidArgument, moraine.TooLarge, moraine.Unimplemented:
		return false, r.err // another device would answer the same
	case moraine.Corrupt:
		// If the bytes are wrong here, the device is not at fault.
		if err := p.st.verify(r.index, p.c.zeros); err != nil {
			p.c.log.Error("bytes changed in memory after the client computed their checksum", "stripe", p.ticket.stripe, "index", r.index, "err", err)
			return false, err
		}
	}
	p.c.health.failed(dev)
	p.c.Topology.doubt()
	return false, p.replaceFailed(ctx, r.index, r.err)
}

// send starts to put a chunk on the placement's device.
func (p *putter) send(ctx context.Context, index int) {
	ch := &p.chunks[index]
	ch.try++
	try, dev := ch.try, p.place.devices[index]
	own, cancel := context.WithTimeout(ctx, p.c.cfg.PutTimeout)
	ch.cancel = cancel
	p.sending.Go(func() {
		defer cancel()
		reply, err := p.put(own, index, dev)
		select {
		case p.results <- putResult{index, try, reply, err}:
		case <-ctx.Done(): // no receiver is left
		}
	})
}

func (p *putter) put(ctx context.Context, index int, dev moraine.DeviceID) (*wire.PutChunkReply, error) {
	d, err := p.c.Topology.find(ctx, dev)
	if err != nil {
		return nil, err
	}
	capability := p.c.Grants.capability(ctx, p.ticket.Grant)
	began := p.c.clock.Now()
	reply, err := d.chunks.Put(ctx, &wire.PutChunk{Stripe: uint64(p.ticket.stripe), Index: uint32(index),
		Device: uint32(dev), Version: 1, Tenant: p.ticket.Grant.tenant, Crc: p.st.sums[index],
		Level: uint32(p.level), DeferredFor: uint64(p.step), Session: p.ticket.Grant.Session.Id, LowPriority: isLowPriority(ctx), Capability: capability}, p.st.payload(index, p.c.zeros)...)
	p.c.metrics.PutSeconds.Observe(p.c.clock.Now().Sub(began).Seconds())
	if err == nil && moraine.Level(reply.Level) < p.level {
		err = &moraine.Error{Op: "put chunk", Ref: deviceRef(dev), Kind: moraine.IOError,
			Err: fmt.Errorf("the chunk reached level %d, want level %d", reply.Level, p.level)}
	}
	return reply, err
}

// slowAfter returns how long to wait for the last chunks: four times as long as the others
// took.
func (p *putter) slowAfter() time.Duration {
	var took []time.Duration
	for i := range p.chunks {
		if p.chunks[i].done {
			took = append(took, p.chunks[i].took)
		}
	}
	slices.Sort(took)
	return max(p.c.cfg.SlowFloor, 4*took[len(took)/2])
}

// replaceSlow moves slow chunks to other devices, if that costs no protection.
func (p *putter) replaceSlow(ctx context.Context) {
	keep, avoid := slices.Clone(p.place.devices), p.c.health.all()
	for i := range p.chunks {
		if !p.chunks[i].done {
			avoid = append(avoid, keep[i])
			keep[i] = 0
		}
	}
	next, err := p.c.Grants.place(ctx, p.ticket, p.place.Scheme, avoid, keep)
	if err != nil || next.protects < p.place.protects {
		return
	}
	for i := range p.chunks {
		if !p.chunks[i].done && next.devices[i] != p.place.devices[i] {
			p.c.health.failed(p.place.devices[i])
			p.move(ctx, i, next)
		}
	}
}

// move puts a chunk on the device of another placement.
func (p *putter) move(ctx context.Context, index int, next placement) {
	p.chunks[index].cancel()
	p.place.devices = slices.Clone(p.place.devices)
	p.place.devices[index] = next.devices[index]
	p.place.protects = next.protects
	p.c.metrics.ChunksReplaced.Inc()
	p.c.writing.owe(p.st.chunkLen)
	p.send(ctx, index)
}

// answered reports whether the service finds a placement for the stripe with all devices
// allowed, or answers that there is no room. If the client cannot reach the service, or too few
// servers are up, one full device does not mean that all are full.
func (p *putter) answered(ctx context.Context) bool {
	_, err := p.c.Grants.place(ctx, p.ticket, p.ticket.Grant.asked, nil, nil)
	return err == nil || retry.IsKind(err, moraine.NoSpace)
}

// replaceFailed finds another device for a chunk whose device failed: one that has not failed
// for this stripe, and preferably for no other. If there is none that keeps the other chunks in
// place, but a placement for the whole stripe, it returns errResubmit. If there is neither, it
// waits and begins again with every device: a restarting server is soon back.
func (p *putter) replaceFailed(ctx context.Context, index int, cause error) error {
	bad := p.place.devices[index]
	p.failed = append(p.failed, bad)
	keep := slices.Clone(p.place.devices)
	keep[index] = 0
	avoid := append(p.c.health.all(), p.failed...)
	next, err := p.c.Grants.place(ctx, p.ticket, p.place.Scheme, avoid, keep)
	if err != nil && !retry.IsKind(err, moraine.SessionExpired) {
		next, err = p.c.Grants.place(ctx, p.ticket, p.place.Scheme, p.failed, keep)
	}
	if err == nil {
		p.move(ctx, index, next)
		return nil
	}
	if retry.IsKind(err, moraine.SessionExpired) {
		return err
	}
	if _, err := p.c.Grants.place(ctx, p.ticket, p.ticket.Grant.asked, avoid, nil); err == nil {
		return errResubmit
	}
	p.failed = nil
	p.rounds++
	if p.rounds > 1 && retry.IsKind(cause, moraine.NoSpace) && p.answered(ctx) {
		return cause
	}
	if !retry.Pause(ctx, p.c.clock, p.rounds+3) {
		return retry.ContextErrorAfter(ctx, "put stripe", cause)
	}
	p.send(ctx, index)
	return nil
}
