package stripeio

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/internal/bufpool"
	"github.com/morainefs/moraine/transport/wire"
)

// maxStagedPieces bounds the object extents that one staged stripe replaces, as the service
// does.
const maxStagedPieces = 64

// StageRange copies the evicted ranges of a file within [off, off+n) back into stripes, for the
// holder of a STAGE job. attr describes the file, and object is the object to which it was
// evicted, both as of the lease. Ranges in stripes stay. It reads and verifies the bytes as a
// Reader does, and puts them under a grant of the client's session. It commits stripe by
// stripe, and the caller may repeat it after an error. Before each stripe pace, unless it is
// nil, waits until so many bytes may be read and written. Stale: the file has another
// generation by now.
func (e *Engine) StageRange(ctx context.Context, job moraine.JobID, epoch uint64, attr *wire.Attr, object *wire.Object, off, n int64,
	pace func(ctx context.Context, n int64) error) error {
	s := &stager{Sender: Sender{Engine: e, Inode: moraine.InodeID(attr.Inode), Level: moraine.NVMe,
		Key: GrantKey{Tenant: attr.Tenant, Scheme: e.cfg.Scheme, Dir: moraine.InodeID(attr.Parent)}}, job: job, epoch: epoch, attr: attr, object: object.GetId(), pace: pace}
	return retry.Wrap("client.StageRange", s.Inode.String(), s.run(ctx, off, min(off+n, int64(attr.Size))))
}

// stager stages ranges of one file.
type stager struct {
	Sender
	job    moraine.JobID
	epoch  uint64
	attr   *wire.Attr
	object uint64
	pace   func(ctx context.Context, n int64) error
}

func (s *stager) run(ctx context.Context, off, end int64) error {
	extents := NewExtentMap(s.Engine, s.attr.Inode, s.attr.Generation)
	extents.Job = s.job
	found, err := extents.Find(ctx, off, end)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(s.Engine.cfg.StripesInFlight)
	for _, run := range s.runs(found, off, end) {
		for len(run) > 0 {
			// The ticket says how much fits into the stripe.
			t, err := s.Engine.Grants.Take(ctx, s.Key, s.Inode)
			if err != nil {
				_ = group.Wait()
				return err
			}
			var part []Located
			part, run = takePart(run, int64(t.Scheme.K)*s.Engine.ChunkBytes(t.Scheme))
			group.Go(func() error { return s.stage(ctx, t, part) })
		}
	}
	return group.Wait()
}

// runs returns the parts of [off, end) that are in the object, as runs of extents without gaps.
func (s *stager) runs(found []Located, off, end int64) [][]Located {
	var runs [][]Located
	last := int64(-1)
	for _, e := range found {
		if e.Object == nil || e.Object.object.Id != s.object {
			continue
		}
		e = e.from(off).to(end)
		if e.Offset != last {
			runs = append(runs, nil)
		}
		last = e.End()
		runs[len(runs)-1] = append(runs[len(runs)-1], e)
	}
	return runs
}

// from returns the extent without what lies before off.
func (e Located) from(off int64) Located {
	if d := off - e.Offset; d > 0 {
		e.Offset, e.Length, e.StripeOffset = off, e.Length-d, e.StripeOffset+d
	}
	return e
}

// to returns the extent without what lies from end on.
func (e Located) to(end int64) Located {
	e.Length = min(e.Length, end-e.Offset)
	return e
}

// takePart removes the first part of a run: at most size bytes in a few extents.
func takePart(run []Located, size int64) (part, rest []Located) {
	end := run[0].Offset + size
	for i, e := range run {
		if i == maxStagedPieces || e.Offset >= end {
			return part, run[i:]
		}
		part = append(part, e.to(end))
		if e.End() > end {
			return part, append([]Located{e.from(end)}, run[i+1:]...)
		}
	}
	return part, nil
}

// stage puts a part, of at most one stripe, and commits it in place of the object's range. It
// settles the ticket.
func (s *stager) stage(ctx context.Context, t *Ticket, part []Located) error {
	off := part[0].Offset
	length := part[len(part)-1].End() - off
	if s.pace != nil {
		if err := s.pace(ctx, length+int64(t.Scheme.Chunks())*t.Scheme.ChunkLen(length)); err != nil {
			s.Engine.Grants.Settle(t, false)
			return err
		}
	}
	// All at once, so that nothing waits while it has some.
	need := length + int64(t.Scheme.M)*(t.Scheme.ChunkLen(length)+moraine.BlockSize)
	if err := s.Engine.Writes.Acquire(ctx, need); err != nil {
		s.Engine.Grants.Settle(t, false)
		return err
	}
	defer s.Engine.Writes.Release(need)
	ctx, cancel := context.WithTimeout(ctx, s.Engine.cfg.Patience)
	defer cancel()
	st := &Stripe{}
	defer st.Free()
	for st.Length < length {
		buf, err := s.Engine.Pool.Get(ctx, int(min(length-st.Length, s.Engine.cfg.ChunkBytes, bufpool.MaxSize)))
		if err == nil {
			at := off + st.Length
			st.segs = append(st.segs, segment{b: buf.Bytes(), buf: buf})
			st.Length += int64(len(buf.Bytes()))
			_, err = s.Engine.ReadLocated(ctx, overlapping(part, at, at+int64(len(buf.Bytes()))), buf.Bytes(), at, false)
		}
		if err != nil {
			s.Engine.Grants.Settle(t, false)
			return err
		}
	}
	sent, err := s.Send(ctx, st, t)
	if err != nil {
		return err
	}
	if err := s.commit(ctx, off, sent); err != nil {
		s.Release(sent)
		return err
	}
	for _, p := range sent {
		s.Engine.Grants.Settle(p.Ticket, true)
	}
	return nil
}

// overlapping returns the extents of a run that overlap [off, end).
func overlapping(run []Located, off, end int64) []Located {
	var out []Located
	for _, e := range run {
		if e.End() > off && e.Offset < end {
			out = append(out, e)
		}
	}
	return out
}

// commit commits stripes in place of the file's content from off on.
func (s *stager) commit(ctx context.Context, off int64, sent []SentStripe) error {
	op := &wire.CommitStage{Job: uint64(s.job), LeaseEpoch: s.epoch, Inode: s.attr.Inode, Generation: s.attr.Generation, Object: s.object}
	for _, p := range sent {
		op.Stripes = append(op.Stripes, p.Record)
		op.Promised = max(op.Promised, p.Ticket.Grant.Promised())
		op.Extents = append(op.Extents, &wire.Extent{Offset: uint64(off), Length: p.Record.Length, Stripe: p.Record.Id})
		off += int64(p.Record.Length)
	}
	_, err := s.Engine.meta.DoUnder(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_CommitStage{CommitStage: op}}, sent[0].Ticket.Grant.Session)
	return err
}
