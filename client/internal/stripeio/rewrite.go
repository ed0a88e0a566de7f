package stripeio

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
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
