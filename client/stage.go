package client

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/internal/bufpool"
	"github.com/morainefs/moraine/transport/wire"
)

// maxStagedPieces bounds the object extents that one staged stripe takes the
// place of, as the service does.
const maxStagedPieces = 64

// StageRange brings the ranges of a file within [off, off+n) that are in an
// object only back to stripes, for the holder of a STAGE job: attr is the file
// and object what it was evicted to, as of the lease. What is in stripes stays.
// The bytes are read and verified as by a Reader, put under a grant of the
// client's session, and swapped in stripe by stripe; it may be called again
// after an error. Before each stripe pace, unless it is nil, waits until so many bytes may
// be got and put. Stale: the file has another generation by now.
func (c *Client) StageRange(ctx context.Context, job moraine.JobID, epoch uint64, attr *wire.Attr, object *wire.Object, off, n int64,
	pace func(ctx context.Context, n int64) error) error {
	s := &stager{sender: sender{c: c, inode: moraine.InodeID(attr.Inode), level: moraine.NVMe,
		key: grantKey{tenant: attr.Tenant, scheme: c.cfg.Scheme, dir: moraine.InodeID(attr.Parent)}}, job: job, epoch: epoch, attr: attr, object: object.GetId(), pace: pace}
	return retry.Wrap("client.StageRange", s.inode.String(), s.run(ctx, off, min(off+n, int64(attr.Size))))
}

// stager stages ranges of one file.
type stager struct {
	sender
	job    moraine.JobID
	epoch  uint64
	attr   *wire.Attr
	object uint64
	pace   func(ctx context.Context, n int64) error
}

func (s *stager) run(ctx context.Context, off, end int64) error {
	extents := newExtentMap(s.c, s.attr.Inode, s.attr.Generation)
	extents.job = s.job
	found, err := extents.find(ctx, off, end)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(s.c.cfg.StripesInFlight)
	for _, run := range s.runs(found, off, end) {
		for len(run) > 0 {
			// The ticket says how much fits into the stripe.
			t, err := s.c.grants.take(ctx, s.key, s.inode)
			if err != nil {
				_ = group.Wait()
				return err
			}
			var part []located
			part, run = takePart(run, int64(t.scheme.K)*s.c.chunkBytes(t.scheme))
			group.Go(func() error { return s.stage(ctx, t, part) })
		}
	}
	return group.Wait()
}

// runs returns what of [off, end) is in the object, as runs of extents without
// gaps.
func (s *stager) runs(found []located, off, end int64) [][]located {
	var runs [][]located
	last := int64(-1)
	for _, e := range found {
		if e.object == nil || e.object.object.Id != s.object {
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
func (e located) from(off int64) located {
	if d := off - e.Offset; d > 0 {
		e.Offset, e.Length, e.StripeOffset = off, e.Length-d, e.StripeOffset+d
	}
	return e
}

// to returns the extent without what lies from end on.
func (e located) to(end int64) located {
	e.Length = min(e.Length, end-e.Offset)
	return e
}

// takePart cuts the first part off a run: at most size bytes of a few extents.
func takePart(run []located, size int64) (part, rest []located) {
	end := run[0].Offset + size
	for i, e := range run {
		if i == maxStagedPieces || e.Offset >= end {
			return part, run[i:]
		}
		part = append(part, e.to(end))
		if e.End() > end {
			return part, append([]located{e.from(end)}, run[i+1:]...)
		}
	}
	return part, nil
}

// stage puts a part, of one stripe at most, and swaps it in. It settles the
// ticket.
func (s *stager) stage(ctx context.Context, t *ticket, part []located) error {
	off := part[0].Offset
	length := part[len(part)-1].End() - off
	if s.pace != nil {
		if err := s.pace(ctx, length+int64(t.scheme.Chunks())*t.scheme.ChunkLen(length)); err != nil {
			s.c.grants.settle(t, false)
			return err
		}
	}
	// All at once, so that nothing waits while it holds some.
	need := length + int64(t.scheme.M)*(t.scheme.ChunkLen(length)+moraine.BlockSize)
	if err := s.c.writes.acquire(ctx, need); err != nil {
		s.c.grants.settle(t, false)
		return err
	}
	defer s.c.writes.release(need)
	st := &stripe{}
	defer st.free()
	for st.length < length {
		buf, err := s.c.pool.Get(ctx, int(min(length-st.length, s.c.cfg.ChunkBytes, bufpool.MaxSize)))
		if err == nil {
			at := off + st.length
			st.segs = append(st.segs, segment{b: buf.Bytes(), buf: buf})
			st.length += int64(len(buf.Bytes()))
			_, err = s.c.readLocated(ctx, overlapping(part, at, at+int64(len(buf.Bytes()))), buf.Bytes(), at, false)
		}
		if err != nil {
			s.c.grants.settle(t, false)
			return err
		}
	}
	sent, err := s.send(ctx, st, t)
	if err != nil {
		return err
	}
	if err := s.commit(ctx, off, sent); err != nil {
		s.release(sent)
		return err
	}
	for _, p := range sent {
		s.c.grants.settle(p.ticket, true)
	}
	return nil
}

// overlapping returns the extents of a run that overlap [off, end).
func overlapping(run []located, off, end int64) []located {
	var out []located
	for _, e := range run {
		if e.End() > off && e.Offset < end {
			out = append(out, e)
		}
	}
	return out
}

// commit swaps stripes in for what the file has from off on.
func (s *stager) commit(ctx context.Context, off int64, sent []sentStripe) error {
	op := &wire.CommitStage{Job: uint64(s.job), LeaseEpoch: s.epoch, Inode: s.attr.Inode, Generation: s.attr.Generation, Object: s.object}
	for _, p := range sent {
		op.Stripes = append(op.Stripes, p.record)
		op.Promised = max(op.Promised, p.ticket.grant.promised())
		op.Extents = append(op.Extents, &wire.Extent{Offset: uint64(off), Length: p.record.Length, Stripe: p.record.Id})
		off += int64(p.record.Length)
	}
	_, err := s.c.meta.DoUnder(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_CommitStage{CommitStage: op}}, sent[0].ticket.grant.session)
	return err
}
