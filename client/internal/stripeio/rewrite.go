package stripeio

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/internal/bufpool"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// maxRewrittenPieces bounds the extents that one CommitRewrite replaces, as the service does.
	// maxRewrittenRuns bounds the new extents, with room for a stripe that must be sent in parts.
	maxRewrittenPieces, maxRewrittenRuns = 256, moraine.MaxCommitExtents - 64
	// maxRewritePieces bounds the extents that one job keeps in memory; it leaves the others to
	// the next job.
	maxRewritePieces = 1 << 16
	// maxUnread is how many unreadable stripes a job leaves out, each after the client's
	// patience, before it fails: then the cause is not the stripes.
	maxUnread = 4
)

// RewriteStripes copies the live bytes that a REWRITE job's file has in the
// job's stripes into new stripes. It commits the new ones in their place. It is
// for the holder of the job. It packs the live pieces in the order of the file,
// so that what is left of many stripes makes few. It reads and verifies each
// piece as a Reader does. Before each read pace waits until so many more bytes
// may be moved. It leaves pieces that changed since it read them. For a job
// that names files, it packs the pieces of all of them together. It returns
// what was replaced, also on error, and the caller may repeat it after one.
func (e *Engine) RewriteStripes(ctx context.Context, job *wire.Job, pace func(ctx context.Context, n int64) error) (rawclient.Rewritten, error) {
	w := &rewriter{job: job, pace: pace, left: maxUnread, Sender: Sender{Engine: e, Inode: moraine.InodeID(job.GetInode()), Level: moraine.NVMe}}
	run := w.run
	if len(job.GetRewrite().GetFiles()) > 0 {
		run = w.runPack
	}
	err := run(ctx)
	return w.done, retry.Wrap("client.RewriteStripes", w.Inode.String(), err)
}

// rewriter rewrites stripes of one file, or packs small files.
type rewriter struct {
	Sender
	job   *wire.Job
	pace  func(ctx context.Context, n int64) error
	group *rewriteGroup // in progress
	done  rawclient.Rewritten
	// unread is why the first unreadable stripe could not be read. left is how many more may be
	// left out.
	unread error
	left   int
	fresh  map[moraine.StripeID]*Record // with renewed capabilities
}

func (w *rewriter) run(ctx context.Context) error {
	pieces, err := w.find(ctx)
	if retry.IsKind(err, moraine.NotFound) {
		return nil // the file and its stripes are gone
	}
	if err != nil {
		return err
	}
	var bad error
	for _, g := range groupPieces(pieces) {
		switch err := w.runGroup(ctx, g); {
		case err == nil:
		case errors.Is(err, errFileGone):
			return nil
		case ctx.Err() != nil, retry.IsKind(err, moraine.Fenced), retry.IsKind(err, moraine.SessionExpired):
			return err
		default: // another group may be readable and have room
			bad = cmp.Or(bad, err)
		}
	}
	return cmp.Or(bad, w.unread)
}

// errFileGone ends the rewriting of a removed file: its stripes went with it.
var errFileGone = errors.New("the file was removed")

// unreadError names the stripe that could not be read.
type unreadError struct {
	stripe moraine.StripeID
	err    error
}

// Error names the stripe and the cause.
func (e *unreadError) Error() string {
	return e.stripe.String() + " could not be read: " + e.err.Error()
}

// Unwrap returns the cause.
func (e *unreadError) Unwrap() error { return e.err }

// without returns the pieces that are not of a stripe.
func without(pieces []Located, stripe moraine.StripeID) []Located {
	return slices.DeleteFunc(slices.Clone(pieces), func(e Located) bool { return e.Stripe == stripe })
}

// rewriteGroup is pieces of stripes of the same kind. The new stripes are of that kind too, so
// the bytes are as safe as before.
type rewriteGroup struct {
	scheme moraine.Scheme
	// small are copies that may be the ends of stripes of another scheme with the same
	// protection. They are combined by the policy's current scheme, if that has the same
	// protection.
	small   bool
	pieces  []Located
	stripes map[moraine.StripeID]bool
}

// groupPieces groups the pieces by the schemes of their stripes, in the order of the file.
func groupPieces(pieces []Located) []*rewriteGroup {
	var out []*rewriteGroup
	for _, e := range pieces {
		scheme, small := e.Record.Scheme, e.Record.Scheme.IsCopies() && e.Record.Length <= moraine.SmallRemainder
		n := slices.IndexFunc(out, func(g *rewriteGroup) bool { return g.scheme == scheme && g.small == small })
		if n < 0 {
			n = len(out)
			out = append(out, &rewriteGroup{scheme: scheme, small: small, stripes: map[moraine.StripeID]bool{}})
		}
		out[n].pieces = append(out[n].pieces, e)
		out[n].stripes[e.Stripe] = true
	}
	return out
}

func (w *rewriter) runGroup(ctx context.Context, g *rewriteGroup) error {
	w.group, w.Key.Scheme = g, g.scheme
	if g.small {
		w.Key.Scheme = moraine.Scheme{}
	}
	fewer := int(w.job.GetRewrite().GetFewer())
	for pieces := g.pieces; len(pieces) > 0; {
		// The ticket says how much fits into the stripe.
		t, err := w.Engine.Grants.Take(ctx, w.Key, w.Inode)
		if err != nil {
			return err
		}
		if w.Key.Scheme.K == 0 && t.Grant.asked.M != g.scheme.M {
			w.Engine.Grants.Settle(t, false)
			w.Key.Scheme = g.scheme // the policy's scheme has other protection
			continue
		}
		if err := w.safe(t.Scheme); err != nil {
			w.Engine.Grants.Settle(t, false)
			return err
		}
		size := int64(t.Scheme.K) * w.Engine.ChunkBytes(t.Scheme)
		if fewer > 0 && fewer*countParts(pieces, size) > len(g.stripes) {
			w.Engine.Grants.Settle(t, false)
			return nil
		}
		fewer = 0
		var part []Located
		part, pieces = takePieces(pieces, size)
		err = w.rewrite(ctx, t, part)
		var unread *unreadError
		switch {
		case err == nil, retry.IsKind(err, moraine.Stale):
			// Stale: the file has other extents there by now; the rest may be unchanged.
		case ctx.Err() == nil && errors.As(err, &unread) && w.left > 0:
			w.left--
			w.unread = cmp.Or(w.unread, err)
			pieces = append(without(part, unread.stripe), without(pieces, unread.stripe)...)
		default:
			return err
		}
	}
	return nil
}

// safe fails if a scheme has less parity than that of the group. That happens if too few hosts are
// up for a scheme as good.
func (w *rewriter) safe(scheme moraine.Scheme) error {
	if scheme.M >= w.group.scheme.M {
		return nil
	}
	return &moraine.Error{Op: "rewrite", Kind: moraine.Unavailable,
		Err: fmt.Errorf("there is room only for %s, but the stripes have %s", scheme, w.group.scheme)}
}

// find returns the extents that refer to the job's stripes.
func (w *rewriter) find(ctx context.Context) ([]Located, error) {
	task := w.job.GetRewrite()
	wanted := make(map[moraine.StripeID]bool, len(task.GetStripes()))
	for _, s := range task.GetStripes() {
		wanted[moraine.StripeID(s)] = true
	}
	var out []Located
	for off, end := int64(task.GetOffset()), int64(task.GetEnd()); off < end && len(out) < maxRewritePieces; {
		// Pages of different generations are harmless: the service compares each extent with the
		// file at the commit.
		p, a, err := w.Engine.pageAt(ctx, &wire.GetExtents{Inode: uint64(w.Inode), Offset: uint64(off), Limit: extentPage, Job: w.job.GetId()})
		if err != nil {
			return nil, err
		}
		w.Key = GrantKey{Tenant: a.GetTenant(), Dir: moraine.InodeID(a.GetParent())}
		for _, e := range p.extents {
			if e.Record != nil && wanted[e.Stripe] && e.Offset >= off && e.Offset < end {
				out = append(out, e)
			}
		}
		off = p.to
	}
	return out, nil
}

// takePieces removes the first pieces, of at most size bytes, that one commit can replace.
func takePieces(pieces []Located, size int64) (part, rest []Located) {
	runs, last := 0, int64(-1)
	for i, e := range pieces {
		if e.Offset != last {
			runs++
		}
		last = e.End()
		if i == maxRewrittenPieces || runs > maxRewrittenRuns || size == 0 {
			return part, pieces[i:]
		}
		if e.Length > size {
			at := e.Offset + size
			return append(part, e.to(at)), append([]Located{e.from(at)}, pieces[i+1:]...)
		}
		part, size = append(part, e), size-e.Length
	}
	return part, nil
}

// countParts returns how many parts takePieces makes.
func countParts(pieces []Located, size int64) (n int) {
	for ; len(pieces) > 0; n++ {
		_, pieces = takePieces(pieces, size)
	}
	return n
}

// rewrite puts pieces together into a stripe, and commits it in their place. It settles the
// ticket.
func (w *rewriter) rewrite(ctx context.Context, t *Ticket, part []Located) error {
	return w.put(ctx, t, part, func(ctx context.Context, sent []SentStripe) error {
		for _, p := range sent {
			if err := w.safe(wire.SchemeFromWire(p.Record.Scheme)); err != nil {
				return err
			}
		}
		_, err := w.commit(ctx, []packedFile{{inode: uint64(w.Inode), pieces: part}}, sent)
		if retry.IsKind(err, moraine.NotFound) {
			return errFileGone
		}
		return err
	})
}

// put puts pieces together into a stripe, and calls commit with what was sent. It settles the
// ticket.
func (w *rewriter) put(ctx context.Context, t *Ticket, part []Located, commit func(context.Context, []SentStripe) error) error {
	var length int64
	for _, e := range part {
		length += e.Length
	}
	giveUp := func(err error) error {
		w.Engine.Grants.Settle(t, false)
		return err
	}
	if err := w.pace(ctx, length); err != nil {
		return giveUp(err)
	}
	// A part has a time limit, so that one that hangs does not delay the others.
	ctx, cancel := context.WithTimeout(ctx, w.Engine.cfg.Patience)
	defer cancel()
	// All at once, so that nothing waits while it has some.
	need := length + int64(t.Scheme.M)*(t.Scheme.ChunkLen(length)+moraine.BlockSize)
	if err := w.Engine.Writes.Acquire(ctx, need); err != nil {
		return giveUp(err)
	}
	defer w.Engine.Writes.Release(need)
	st := &Stripe{}
	defer st.Free()
	if err := w.gather(ctx, st, part, length); err != nil {
		return giveUp(err)
	}
	sent, err := w.Send(ctx, st, t)
	if err != nil {
		return err
	}
	if err := commit(ctx, sent); err != nil {
		w.Release(sent)
		return err
	}
	for _, p := range sent {
		w.Engine.Grants.Settle(p.Ticket, true)
	}
	return nil
}

// gather reads pieces into a stripe, one after the other.
func (w *rewriter) gather(ctx context.Context, st *Stripe, part []Located, length int64) error {
	var left []byte // unused part of the last buffer
	for _, e := range part {
		e, err := w.renewed(ctx, e)
		if err != nil {
			return err
		}
		for e.Length > 0 {
			if len(left) == 0 {
				buf, err := w.Engine.Pool.Get(ctx, int(min(length-st.Length, w.Engine.cfg.ChunkBytes, bufpool.MaxSize)))
				if err != nil {
					return err
				}
				left = buf.Bytes()
				st.segs = append(st.segs, segment{b: left, buf: buf})
				st.Length += int64(len(left))
			}
			n := min(e.Length, int64(len(left)))
			at := e.Offset + n
			if _, err := w.Engine.ReadLocated(ctx, []Located{e.to(at)}, left[:n], e.Offset, false); err != nil {
				return &unreadError{e.Stripe, err}
			}
			left = left[n:]
			if n == e.Length {
				break
			}
			e = e.from(at)
		}
	}
	if st.Length != length || len(left) != 0 {
		return errors.New("the pieces of a stripe do not add up")
	}
	return nil
}

// commit commits sent stripes with the bytes of the files in place of their old extents. It
// returns how many files the service changed.
func (w *rewriter) commit(ctx context.Context, files []packedFile, sent []SentStripe) (changed int64, err error) {
	op := &wire.CommitRewrite{Job: w.job.GetId(), LeaseEpoch: w.job.GetLeaseEpoch()}
	for _, p := range sent {
		op.Stripes = append(op.Stripes, p.Record)
		op.Promised = max(op.Promised, p.Ticket.Grant.Promised())
	}
	in, at := 0, uint64(0) // position in the sent stripes
	for _, f := range files {
		p := &wire.RewrittenFile{Inode: f.inode}
		for _, e := range f.pieces {
			p.Was = append(p.Was, wireExtent(e.Extent))
			for off, end := uint64(e.Offset), uint64(e.End()); off < end; {
				if at == sent[in].Record.Length {
					in, at = in+1, 0
				}
				n := min(end-off, sent[in].Record.Length-at)
				p.Extents = appendExtent(p.Extents, &wire.Extent{Offset: off, Length: n, Stripe: sent[in].Record.Id, StripeOffset: at})
				off, at = off+n, at+n
			}
		}
		op.Files = append(op.Files, p)
	}
	resp, err := w.Engine.meta.DoUnder(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_CommitRewrite{CommitRewrite: op}}, sent[0].Ticket.Grant.Session)
	for _, f := range files {
		if slices.Contains(resp.GetRewrite().GetRewritten(), f.inode) {
			changed++
			for _, e := range f.pieces {
				w.done.Bytes += e.Length
			}
		}
	}
	return changed, err
}

func wireExtent(e moraine.Extent) *wire.Extent {
	return &wire.Extent{Offset: uint64(e.Offset), Length: uint64(e.Length), Stripe: uint64(e.Stripe), StripeOffset: uint64(e.StripeOffset)}
}

// appendExtent appends an extent, or extends the last one by it.
func appendExtent(exts []*wire.Extent, e *wire.Extent) []*wire.Extent {
	if n := len(exts); n > 0 {
		if l := exts[n-1]; l.Stripe == e.Stripe && l.Offset+l.Length == e.Offset && l.StripeOffset+l.Length == e.StripeOffset {
			l.Length += e.Length
			return exts
		}
	}
	return append(exts, e)
}
