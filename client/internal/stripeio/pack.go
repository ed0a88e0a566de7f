package stripeio

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

// packedFile is a file to pack with others.
type packedFile struct {
	inode  uint64
	key    GrantKey
	pieces []Located // all its extents
	length int64
	chunks int   // of their stripes
	lose   uint8 // the most chunks that one of its stripes may lose
	// stripes says that some of its bytes are in stripes; otherwise the metadata has them all.
	stripes bool
}

// runPack puts the bytes of the job's small files together into stripes, for the holder of the
// job. It leaves files that changed since the leader looked. It also leaves them if there would
// be too few, or if the policy now says copies.
func (w *rewriter) runPack(ctx context.Context) error {
	var files []packedFile
	for _, id := range w.job.GetRewrite().GetFiles() {
		f, err := w.findSmall(ctx, id)
		if err != nil {
			return err
		}
		if f.length > 0 {
			files = append(files, f)
		}
	}
	var unsafe error // why files would have less protection
	for len(files) > 0 {
		w.Inode, w.Key = moraine.InodeID(files[0].inode), files[0].key
		t, err := w.Engine.Grants.Take(ctx, w.Key, w.Inode)
		if err != nil {
			return err
		}
		if err := w.mayPack(t); err != nil {
			w.Engine.Grants.Settle(t, false)
			return err
		}
		if t.Scheme.IsCopies() { // only the metadata gains by copies
			files = slices.DeleteFunc(files, func(f packedFile) bool { return f.stripes })
		}
		var part []packedFile
		size := int64(t.Scheme.K) * w.Engine.ChunkBytes(t.Scheme)
		part, files = takeFiles(slices.DeleteFunc(files, func(f packedFile) bool { return f.lose > t.Scheme.M || f.length > size }), size)
		if len(part) < wire.LeastPacked && (len(part) < 2 || lengthOf(part) <= w.Engine.SmallBytes()) {
			w.Engine.Grants.Settle(t, false)
			continue
		}
		err = w.pack(ctx, t, part)
		var unread *unreadError
		switch {
		case err == nil, retry.IsKind(err, moraine.Stale), retry.IsKind(err, moraine.NotFound):
			// All of them changed; the others may not have.
		case retry.IsKind(err, moraine.Conflict):
			unsafe = cmp.Or(unsafe, err) // the others may be safe
		case ctx.Err() == nil && errors.As(err, &unread) && w.left > 0:
			w.left--
			w.unread = cmp.Or(w.unread, err)
			files = append(slices.DeleteFunc(part, func(f packedFile) bool {
				return slices.ContainsFunc(f.pieces, func(e Located) bool { return e.Stripe == unread.stripe })
			}), files...)
		default:
			return err
		}
	}
	return cmp.Or(w.unread, unsafe)
}

// mayPack returns why a ticket's placement is not good enough: it has less protection than
// intended, because too few hosts are up.
func (w *rewriter) mayPack(t *Ticket) error {
	if asked := t.Grant.asked; t.Scheme.M < asked.M || t.protects < uint32(asked.M) {
		return &moraine.Error{Op: "pack", Kind: moraine.Unavailable,
			Err: fmt.Errorf("there is room only for %s that survives the loss of %d hosts; the job needs %s", t.Scheme, t.protects, asked)}
	}
	return nil
}

// findSmall returns the extents of a file. It returns nothing if the file is gone, is no longer
// small, or has a stripe newer than the leader's look.
func (w *rewriter) findSmall(ctx context.Context, inode uint64) (packedFile, error) {
	f, none := packedFile{inode: inode}, packedFile{}
	p, a, err := w.Engine.pageAt(ctx, &wire.GetExtents{Inode: inode, Limit: maxRewrittenRuns, Job: w.job.GetId()})
	if retry.IsKind(err, moraine.NotFound) {
		return none, nil
	}
	if err != nil || p.to != math.MaxInt64 {
		return none, err
	}
	f.key = GrantKey{Tenant: a.GetTenant(), Dir: moraine.InodeID(a.GetParent())}
	seen := map[moraine.StripeID]bool{}
	for _, e := range p.extents {
		f.pieces, f.length = append(f.pieces, e), f.length+e.Length
		if e.Bytes != nil {
			continue
		}
		if e.Record == nil || uint64(e.Stripe) > w.job.GetRewrite().GetSettled() {
			return none, nil
		}
		if !seen[e.Stripe] {
			f.chunks += len(e.Record.Chunks)
		}
		seen[e.Stripe] = true
		f.stripes, f.lose = true, max(f.lose, e.Record.Scheme.M)
	}
	if f.length > moraine.SmallRemainder || f.chunks > wire.MaxPackChunks {
		return none, nil
	}
	return f, nil
}

func lengthOf(files []packedFile) (n int64) {
	for _, f := range files {
		n += f.length
	}
	return n
}

// takeFiles removes the first files that fit into one stripe of size bytes and one commit. All
// stripes have about the same length, so that the last is not small.
func takeFiles(files []packedFile, size int64) (part, rest []packedFile) {
	total := lengthOf(files)
	parts := max((total+size-1)/size, 1)
	even := (total + parts - 1) / parts
	var length int64
	pieces, chunks := 0, 0
	for n, f := range files {
		pieces, chunks = pieces+len(f.pieces), chunks+f.chunks
		if length >= even || length+f.length > size || pieces > maxRewrittenRuns || chunks > wire.MaxPackChunks {
			return files[:n:n], files[n:]
		}
		length += f.length
	}
	return files, nil
}

// pack puts files together into a stripe, and commits it in place of their old extents. It
// settles the ticket.
func (w *rewriter) pack(ctx context.Context, t *Ticket, part []packedFile) error {
	var pieces []Located
	lose := t.Grant.asked.M
	for _, f := range part {
		pieces, lose = append(pieces, f.pieces...), max(lose, f.lose)
	}
	return w.put(ctx, t, pieces, func(ctx context.Context, sent []SentStripe) error {
		if len(sent) != 1 || sent[0].Record.Scheme.M < uint32(lose) {
			return &moraine.Error{Op: "pack", Kind: moraine.Unavailable, Err: errors.New("the remaining devices need another scheme")}
		}
		changed, err := w.commit(ctx, part, sent)
		w.done.Files += changed
		return err
	})
}
