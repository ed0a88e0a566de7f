package chunkserver

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/bufpool"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/tiers"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// PutChunk implements transport.ChunkService. At level memory the chunk may be
// only in memory when PutChunk returns. It is then verified, under its device's boot epoch, and being
// written to the device, unless it is deferred for a step that stays in memory. The level of the
// reply says whether it is. At any other level it is on the device, synced.
func (s *Server) PutChunk(ctx context.Context, req *wire.PutChunk, p transport.Payload) (*wire.PutChunkReply, error) {
	start := s.deps.Clock.Now()
	reply, err := s.put(ctx, req, p)
	s.deps.Metrics.Puts.WithLabelValues(outcome(err)).Inc()
	if err == nil {
		s.deps.Metrics.PutBytes.Add(float64(p.Len()))
		s.deps.Metrics.PutSeconds.Observe(s.since(start))
	}
	return reply, err
}

func (s *Server) put(ctx context.Context, req *wire.PutChunk, p transport.Payload) (*wire.PutChunkReply, error) {
	d, leave, err := s.admitPut(ctx, req, p.Len())
	if err != nil {
		// The server must read the bytes from the connection before it can answer.
		if discardErr := p.Discard(); discardErr != nil {
			return nil, discardErr
		}
		return nil, err
	}
	defer leave()
	f := s.fleet.Load()
	if f == nil {
		return nil, errors.Join(&moraine.Error{Op: "chunkserver.Put", Ref: s.cfg.Node, Kind: moraine.Unavailable, Err: errors.New("shutting down")}, p.Discard())
	}
	buf, err := f.memory.Arena().Get(ctx, p.Len())
	if err != nil {
		return nil, errors.Join(err, p.Discard())
	}
	sums, err := receive(req, p, buf.Bytes())
	if err != nil {
		buf.Release()
		return nil, err
	}
	want := moraine.NVMe
	if moraine.Level(req.Level) == moraine.Memory && !req.Repair {
		want = moraine.Memory
	}
	// Before the chunk is taken: under a later epoch it would count although it may
	// be gone.
	epoch := d.epoch.Load()
	h := tiers.Header{
		ID: chunkID(req.Stripe, req.Index), Version: moraine.LayoutVersion(req.Version), Tenant: moraine.Tenant(req.Tenant),
		Cluster: f.cluster, Incarnation: moraine.ID(req.Stripe).Incarnation(), Length: int64(p.Len()), CRC: req.Crc,
		Cipher: uint8(req.Cipher), KeyID: req.KeyId,
	}
	if req.Repair {
		if there, err := d.displace(ctx, &h); err != nil || there {
			buf.Release()
			return &wire.PutChunkReply{Level: uint32(moraine.NVMe), Epoch: epoch}, err
		}
	}
	level, err := d.take(ctx, req, h, buf, sums, want)
	if err != nil {
		return nil, err
	}
	return &wire.PutChunkReply{Level: uint32(level), Epoch: epoch}, nil
}

// take gives a chunk to the device's tier, and returns the level that it has then.
func (d *device) take(ctx context.Context, req *wire.PutChunk, h tiers.Header, buf *bufpool.Buffer, sums []uint32, want moraine.Level) (moraine.Level, error) {
	if want == moraine.Memory && req.DeferredFor != 0 {
		return d.tier.TakeDeferred(ctx, h, buf, sums, req.DeferredFor)
	}
	return d.tier.Take(ctx, h, buf, sums, want)
}

// displace makes room for a repaired chunk. The device may have a chunk of the
// same or a greater layout version, which the tier would keep. The intent
// decides which chunk belongs here. there is true if the stored chunk already
// has the right bytes, and stays.
func (d *device) displace(ctx context.Context, h *tiers.Header) (there bool, err error) {
	old, err := d.tier.Get(ctx, h.ID, 0, nil)
	switch {
	case errors.Is(err, moraine.NotFound):
		return false, nil
	case err != nil:
		return false, err
	case old.Version < h.Version, old == *h:
		return false, nil // the tier replaces it, or reports that it exists
	}
	if old.CRC == h.CRC && old.Length == h.Length && old.Tenant == h.Tenant {
		// Verify its bytes: it may be the last chunk of the stripe with the right
		// ones.
		v, err := d.tier.View(ctx, h.ID, 0, h.Length)
		if err == nil {
			v.Release()
			return true, d.tier.Sync(ctx, []moraine.ChunkID{h.ID})
		}
		if !errors.Is(err, moraine.Corrupt) {
			return false, err
		}
	}
	return false, d.tier.Delete(ctx, h.ID, old.Version+1)
}

// receive reads a chunk into data, verifies it, and returns the checksums of its
// blocks.
func receive(req *wire.PutChunk, p transport.Payload, data []byte) ([]uint32, error) {
	sums := make([]uint32, 0, crc.BlockCount(int64(len(data))))
	// Each piece but the last is a multiple of a block, so that the pieces have the
	// same blocks as the chunk.
	if err := p.ReadInto(data, func(piece []byte) { sums = crc.Blocks(sums, piece) }); err != nil {
		return nil, err
	}
	if got := crc.CombineBlocks(sums, int64(len(data))); got != req.Crc {
		return nil, &moraine.Error{Op: "chunkserver.Put", Ref: chunkID(req.Stripe, req.Index).String(), Kind: moraine.Corrupt,
			Err: fmt.Errorf("chunk checksum mismatch: received CRC32C %08x, want %08x", got, req.Crc)}
	}
	return sums, nil
}

// admitPut decides, before the bytes are read, whether the server accepts a chunk.
// leave must be called once the put has ended.
func (s *Server) admitPut(ctx context.Context, req *wire.PutChunk, length int) (d *device, leave func(), err error) {
	const op = "chunkserver.Put"
	ref := chunkID(req.Stripe, req.Index).String()
	switch {
	case length < 1 || length > moraine.MaxChunkSize:
		return nil, nil, &moraine.Error{Op: op, Ref: ref, Kind: moraine.TooLarge, Err: fmt.Errorf("chunk of %d bytes is out of range: 1 to %d are accepted", length, moraine.MaxChunkSize)}
	case req.Index >= moraine.MaxChunks || req.Stripe == 0 || req.Version == 0 || req.Version == math.MaxUint32: // no deletion covers a later version
		return nil, nil, &moraine.Error{Op: op, Ref: ref, Kind: moraine.InvalidArgument, Err: fmt.Errorf("invalid chunk: stripe %x, index %d, version %d", req.Stripe, req.Index, req.Version)}
	}
	if err := s.permits.mayPut(ctx, op, req, length); err != nil {
		return nil, nil, err
	}
	if d, err = s.device(op, req.Device); err != nil {
		return nil, nil, err
	}
	if err := d.tier.Err(); err != nil {
		return nil, nil, err
	}
	leave, room := d.promise(length, req.Repair)
	if !room {
		return nil, nil, &moraine.Error{Op: op, Ref: d.dir, Kind: moraine.NoSpace, Err: errors.New("device has less than 2% free: it accepts only repairs")}
	}
	return d, leave, nil
}

// promise reserves the space of a chunk, as used space of the device, until leave
// is called. A client's put leaves 2% of the device, after all running puts, for
// repairs. A repair uses the space that exists when it is written.
//
// promise reserves before it checks the free space, and the reservation ends after
// the chunk is counted there. Of two puts the later one thus sees the earlier one,
// once or twice. Puts that race for the last space may be refused, but never exceed
// it.
func (d *device) promise(length int, repair bool) (leave func(), ok bool) {
	n := promised(length)
	all := d.promises.Add(n)
	leave = func() { d.promises.Add(-n) }
	if repair {
		return leave, true
	}
	u := d.tier.Usage()
	if u.FreeBytes() < u.CapacityBytes/50+uint64(all) {
		leave()
		return nil, false
	}
	return leave, true
}

// promised is the most space that a chunk takes on a device. It covers the
// blocks, their checksums (a word each), the head, and the rest of the last
// block.
func promised(length int) int64 {
	const block = moraine.BlockSize
	return int64(length) + int64(length)/(block/4) + 3*block
}

// mayTouch checks that the caller's token covers a tenant. Servers of the cluster
// need none: their certificate suffices.
func mayTouch(ctx context.Context, op string, tenant uint32, write bool) error {
	peer := transport.PeerFrom(ctx)
	if peer == nil || peer.Token == nil {
		if peer == nil || peer.Role.Server() {
			return nil
		}
		return &moraine.Error{Op: op, Ref: peer.Node, Kind: moraine.Unauthenticated, Err: errors.New("session token is missing")}
	}
	if write && peer.Token.ReadOnly {
		return &moraine.Error{Op: op, Ref: peer.Node, Kind: moraine.ReadOnly, Err: errors.New("session is read-only")}
	}
	if peer.Token.AllTenants {
		return nil
	}
	for _, t := range peer.Token.Tenants {
		if t == tenant {
			return nil
		}
	}
	return &moraine.Error{Op: op, Ref: peer.Node, Kind: moraine.PermissionDenied, Err: fmt.Errorf("session does not cover chunks of tenant %d", tenant)}
}
