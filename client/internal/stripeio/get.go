package stripeio

import (
	"context"
	"errors"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/transport/wire"
)

// getChunk reads [lo, lo+len(dst)) of a chunk into dst and verifies it against the stripe
// record. It compares the layout version, length and checksum of the chunk, and the checksum of
// these bytes. When it returns nil the bytes are right; on error dst is undefined. It does not
// use dst after it returns. Errors with a kind for which isBad is true say that the chunk
// itself is lost or wrong.
func (e *Engine) getChunk(ctx context.Context, s *Record, index int, lo int64, dst []byte) error {
	var sums crc.Tally
	return e.getChunkSums(ctx, s, index, lo, dst, &sums)
}

// getChunkSums is getChunk. When it returns nil, sums has what arrived.
func (e *Engine) getChunkSums(ctx context.Context, s *Record, index int, lo int64, dst []byte, sums *crc.Tally) error {
	dev := s.Chunks[index].Device
	get := func(verify bool) error {
		*sums = crc.SumsOf(ctx).Tally(dst)
		return e.getOnce(ctx, s, index, lo, dst, verify, sums)
	}
	err := get(false)
	if err != nil && isRefusal(moraine.KindOf(err)) && ctx.Err() == nil { // the token may be outdated
		if err = e.meta.Renew(ctx, true); err == nil {
			err = get(false)
		}
	}
	if errors.Is(err, errOtherBytes) && ctx.Err() == nil {
		// The bytes changed in the server's memory or in transit. The chunk itself is wrong only
		// if the server confirms it.
		e.metrics.ChunkErrors.WithLabelValues("get", moraine.Corrupt.String()).Inc()
		e.log.Warn("chunk checksum mismatch on arrival; the client reads the chunk again", "stripe", s.ID, "index", index, "device", dev, "err", err)
		err = get(true)
	}
	if err == nil || ctx.Err() != nil {
		return err
	}
	kind := moraine.KindOf(err)
	e.metrics.ChunkErrors.WithLabelValues("get", kind.String()).Inc()
	e.log.Debug("a chunk could not be read", "stripe", s.ID, "index", index, "device", dev, "err", err)
	if kind != moraine.Corrupt {
		e.Topology.doubt()
	}
	switch {
	case isBad(kind):
		e.reports.add(s, index, kind)
	case !isRefusal(kind):
		e.health.failed(dev)
	}
	return err
}

// isRefusal reports whether kind says that the caller may not read the chunk.
func isRefusal(kind moraine.Kind) bool {
	return kind == moraine.Unauthenticated || kind == moraine.PermissionDenied
}

// isBad reports whether kind says that a chunk is lost, wrong or not the record's, rather than
// that its server does not answer.
func isBad(kind moraine.Kind) bool {
	return kind == moraine.NotFound || kind == moraine.Corrupt || kind == moraine.Stale || kind == moraine.Lost
}

// errOtherBytes says that bytes do not match the checksum that came with them.
var errOtherBytes = errors.New("the bytes do not match the checksum that the server sent")

// getOnce requests a range of a chunk. With verify the server first checksums what it has in
// memory. sums has no bytes yet, and gets those that arrive.
func (e *Engine) getOnce(ctx context.Context, s *Record, index int, lo int64, dst []byte, verify bool, sums *crc.Tally) error {
	ch := &s.Chunks[index]
	d, err := e.Topology.find(ctx, ch.Device)
	if err != nil {
		return err
	}
	capability := s.capability
	if s.Grant != nil {
		capability = e.Grants.capability(ctx, s.Grant)
	}
	timed, cancel := context.WithTimeout(ctx, e.cfg.GetTimeout)
	defer cancel()
	e.pace.queue.open.Add(int64(len(dst)))
	defer e.pace.queue.open.Add(-int64(len(dst)))
	began := e.clock.Now()
	reply, n, err := d.chunks.Get(timed, &wire.GetChunk{Stripe: uint64(s.ID), Index: uint32(index),
		Device: uint32(ch.Device), Tenant: uint32(s.Tenant),
		Offset: uint64(lo), Length: uint64(len(dst)), Verify: verify, LowPriority: isLowPriority(ctx), Urgent: isUrgent(ctx), Capability: capability}, dst,
		func(piece []byte) {
			e.pace.queue.arrived.Add(int64(len(piece)))
			sums.Add(piece)
		})
	if err != nil {
		if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			err = &moraine.Error{Op: "get chunk", Kind: moraine.Timeout, Err: err}
		}
		return err
	}
	took := e.clock.Now().Sub(began)
	e.metrics.GetSeconds.Observe(took.Seconds())
	e.metrics.ChunksGot.Inc()
	e.health.answered(ch.Device)
	e.pace.observe(len(dst), took)
	return holdAgainst(s, index, lo, reply, n, len(dst), sums.Sum())
}

// holdAgainst verifies a reply with n bytes, whose checksum is sum, against the record.
func holdAgainst(s *Record, index int, lo int64, r *wire.GetChunkReply, n, want int, sum uint32) error {
	ch := &s.Chunks[index]
	bad := func(kind moraine.Kind, format string, args ...any) error {
		return &moraine.Error{Op: "get chunk", Kind: kind, Err: fmt.Errorf(format, args...),
			Ref: moraine.ChunkID{Stripe: s.ID, Index: uint8(index)}.String()}
	}
	length := s.Scheme.ChunkLen(s.Length)
	switch {
	case r.Crc != ch.CRC:
		return bad(moraine.Corrupt, "the stored chunk has checksum %08x, want %08x", r.Crc, ch.CRC)
	case r.ChunkLength != uint64(length):
		return bad(moraine.Corrupt, "the stored chunk has %d bytes, want %d", r.ChunkLength, length)
	case n != want:
		return bad(moraine.Corrupt, "%d bytes arrived, want %d", n, want)
	case sum != r.PayloadCrc:
		return bad(moraine.Corrupt, "%w: %08x, and not %08x", errOtherBytes, sum, r.PayloadCrc)
	case lo == 0 && int64(n) == length && sum != ch.CRC:
		return bad(moraine.Corrupt, "the bytes have sum %08x, the record %08x", sum, ch.CRC)
	}
	return nil
}
