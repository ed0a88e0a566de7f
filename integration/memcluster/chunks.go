package memcluster

import (
	"context"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// Chunk is a chunk that a host keeps.
type Chunk struct {
	Version, CRC, Tenant uint32
	Data                 []byte
	// DeferredFor is as in the put, until the host is to write the chunk to its device.
	DeferredFor uint64
}

// Count returns how many chunks the host keeps.
func (h *Host) Count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.chunks)
}

// Chunk returns a chunk of the host, nil if it has none of that number.
func (h *Host) Chunk(id moraine.ChunkID) *Chunk {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.chunks[id]
}

// SetChunk replaces a chunk of the host; nil deletes it.
func (h *Host) SetChunk(id moraine.ChunkID, ch *Chunk) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ch == nil {
		delete(h.chunks, id)
		return
	}
	h.chunks[id] = ch
}

// Change calls fn with each chunk of the host. fn may change the chunk, or delete it
// by returning false.
func (h *Host) Change(fn func(id moraine.ChunkID, ch *Chunk) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, ch := range h.chunks {
		if !fn(id, ch) {
			delete(h.chunks, id)
		}
	}
}

func (h *Host) failed(op string, kind moraine.Kind) error {
	return &moraine.Error{Op: op, Ref: h.ID, Kind: kind}
}

// PutChunk implements transport.ChunkService.
func (h *Host) PutChunk(ctx context.Context, req *wire.PutChunk, p transport.Payload) (*wire.PutChunkReply, error) {
	data := make([]byte, p.Len())
	if err := p.ReadInto(data, nil); err != nil {
		return nil, err
	}
	if err := h.hook(ctx, req); err != nil {
		return nil, err
	}
	if crc.Sum(data) != req.GetCrc() {
		return nil, h.failed("put", moraine.Corrupt)
	}
	if err := h.permitPut(ctx, req); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if req.GetDevice() != h.device {
		return nil, h.failed("put", moraine.Unavailable)
	}
	h.counts.Puts++
	id := moraine.ChunkID{Stripe: moraine.StripeID(req.GetStripe()), Index: uint8(req.GetIndex())}
	if old := h.chunks[id]; old != nil && old.Version == req.GetVersion() && old.CRC != req.GetCrc() {
		return nil, h.failed("put", moraine.Exists)
	}
	h.chunks[id] = &Chunk{req.GetVersion(), req.GetCrc(), req.GetTenant(), data, req.GetDeferredFor()}
	return &wire.PutChunkReply{Level: h.reached(req.GetLevel()), Epoch: h.epoch}, nil
}

// GetChunk implements transport.ChunkService.
func (h *Host) GetChunk(ctx context.Context, req *wire.GetChunk) (*wire.GetChunkReply, [][]byte, func(), error) {
	if err := h.hook(ctx, req); err != nil {
		return nil, nil, nil, err
	}
	if err := h.permitGet(ctx, req); err != nil {
		return nil, nil, nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	ch := h.chunks[moraine.ChunkID{Stripe: moraine.StripeID(req.GetStripe()), Index: uint8(req.GetIndex())}]
	switch {
	case req.GetDevice() != h.device || ch == nil:
		return nil, nil, nil, h.failed("get", moraine.NotFound)
	case ch.Tenant != req.GetTenant():
		return nil, nil, nil, h.failed("get", moraine.PermissionDenied)
	case req.GetOffset()+req.GetLength() > uint64(len(ch.Data)):
		return nil, nil, nil, h.failed("get", moraine.InvalidArgument)
	case crc.Sum(ch.Data) != ch.CRC:
		return nil, nil, nil, h.failed("get", moraine.Corrupt)
	}
	data := ch.Data[req.GetOffset():][:req.GetLength()]
	h.counts.Gets++
	h.counts.GetBytes += int64(len(data))
	reply := &wire.GetChunkReply{Version: ch.Version, Crc: ch.CRC, PayloadCrc: crc.Sum(data), ChunkLength: uint64(len(ch.Data))}
	if h.faults.Rotten && !req.GetVerify() {
		data = garbled(data)
	}
	return reply, [][]byte{data}, func() {}, nil
}

// Bytes returns the memory that the chunks of the host take.
func (h *Host) Bytes() (n int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, ch := range h.chunks {
		n += int64(cap(ch.Data))
	}
	return n
}
