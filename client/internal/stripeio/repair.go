package stripeio

import (
	"context"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/transport/wire"
)

// repairPiece bounds the bytes of each chunk that a repair gathers at once. Short requests
// leave gaps for the servers' clients.
const repairPiece = 1 << 20

// RebuildChunk returns the bytes of a chunk, from its device if that still has
// them, or computed from k others. Either way it verifies them against the
// checksum in the stripe record. doubtful has a bit for each chunk reported as
// bad. RebuildChunk reads these after the others, and then those on devices
// that are not in service. Lost: fewer than k chunks agree with the record. The
// bytes are valid until the caller calls release, once.
func (e *Engine) RebuildChunk(ctx context.Context, w *wire.Stripe, index int, doubtful uint32) (data []byte, sum uint32, release func(), err error) {
	fail := func(err error) ([]byte, uint32, func(), error) {
		return nil, 0, nil, retry.Wrap("client.RebuildChunk", fmt.Sprintf("%s/%d", moraine.StripeID(w.GetId()), index), err)
	}
	s, err := RecordFromWire(w)
	if err != nil {
		return fail(err)
	}
	if index < 0 || index >= len(s.Chunks) {
		return fail(&moraine.Error{Kind: moraine.InvalidArgument, Err: fmt.Errorf("the stripe has %d chunks", len(s.Chunks))})
	}
	length, piece := s.Scheme.ChunkLen(s.Length), min(e.pieceOf(s), repairPiece)
	l, err := e.newLease(ctx, length+min(piece, length)*int64(s.Scheme.K+1))
	if err != nil {
		return fail(err)
	}
	out, err := l.own(ctx, int(length))
	if err != nil {
		l.release()
		return fail(err)
	}
	whole := func() bool { return e.getOnce(ctx, s, index, 0, out, true, new(crc.Tally)) == nil } // verifies the whole chunk
	serves := e.serves(s.Chunks[index].Device)
	if serves && whole() {
		return out, s.Chunks[index].CRC, l.release, nil
	}
	g := &gatherer{c: e, s: s, buffers: l, exclude: func(i int) bool { return i == index },
		doubtful: func(i int) bool { return doubtful&(1<<i) != 0 },
		last:     func(i int) bool { return !e.serves(s.Chunks[i].Device) }}
	err = e.rebuildGroup(ctx, g, []target{{index, 0, out}}, piece, func(p []byte) { sum = crc.Update(sum, p) })
	if err == nil && sum != s.Chunks[index].CRC {
		if err = e.rebuildWithout(ctx, g, target{index, 0, out}, piece); err == nil {
			sum = s.Chunks[index].CRC
		}
	}
	if err != nil && !serves && ctx.Err() == nil && whole() {
		return out, s.Chunks[index].CRC, l.release, nil // its device is out, but still has the chunk
	}
	if err != nil {
		l.release()
		return fail(err)
	}
	return out, sum, l.release, nil
}

// serves reports whether a device is expected to answer.
func (e *Engine) serves(dev moraine.DeviceID) bool {
	if d, known := e.Topology.lookup(dev); known && !d.alive {
		return false
	}
	return !e.health.avoided(dev)
}

// putSum returns the checksum of the bytes to put under an intent.
func putSum(s *Record, intent *wire.Intent) uint32 {
	if intent.GetRecoded() {
		return intent.GetCrc()
	}
	return s.Chunks[intent.Index].CRC
}

// PutRepaired puts a chunk under a recorded intent: on the intent's device, with its layout
// version and its capability. data are the chunk's bytes. Their checksum is in the record, or
// in the intent if it says that they were encoded again. When it returns nil the chunk is
// durable there. It makes one attempt, which is safe to repeat.
func (e *Engine) PutRepaired(ctx context.Context, w *wire.Stripe, intent *wire.Intent, capability, data []byte) error {
	ref := fmt.Sprintf("%s/%d", moraine.StripeID(w.GetId()), intent.GetIndex())
	s, err := RecordFromWire(w)
	if err != nil {
		return retry.Wrap("client.PutRepaired", ref, err)
	}
	if intent.Stripe != w.Id || int(intent.Index) >= len(s.Chunks) || int64(len(data)) != s.Scheme.ChunkLen(s.Length) {
		return &moraine.Error{Op: "client.PutRepaired", Ref: ref, Kind: moraine.InvalidArgument,
			Err: fmt.Errorf("%d bytes for index %d of stripe %s", len(data), intent.Index, moraine.StripeID(intent.Stripe))}
	}
	d, err := e.Topology.find(ctx, moraine.DeviceID(intent.Device))
	if err != nil {
		return retry.Wrap("client.PutRepaired", ref, err)
	}
	ctx, cancel := context.WithTimeout(ctx, e.cfg.PutTimeout)
	defer cancel()
	reply, err := d.chunks.Put(ctx, &wire.PutChunk{Stripe: w.Id, Index: intent.Index, Device: intent.Device,
		Version: intent.Version, Tenant: w.Tenant, Crc: putSum(s, intent), Level: uint32(moraine.NVMe),
		Session: e.meta.Current().Id, Cipher: w.Cipher, KeyId: w.KeyId, Repair: true, LowPriority: isLowPriority(ctx), Urgent: isUrgent(ctx), Capability: capability}, data)
	if err == nil && moraine.Level(reply.Level) < moraine.NVMe {
		err = &moraine.Error{Kind: moraine.IOError, Err: fmt.Errorf("at level %d only", reply.Level)}
	}
	if err != nil {
		e.metrics.ChunkErrors.WithLabelValues("repair", moraine.KindOf(err).String()).Inc()
	}
	return retry.Wrap("client.PutRepaired", ref, err)
}
