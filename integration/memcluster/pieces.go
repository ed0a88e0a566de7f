package memcluster

import (
	"context"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/transport/wire"
)

// SetObjects gives the host a bucket with the bytes of these objects; nil takes them
// away.
func (h *Host) SetObjects(objects map[uint64][]byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.objects = objects
}

// Pieces returns the requests for pieces that the host served.
func (h *Host) Pieces() []*wire.GetPiece {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.pieces)
}

// GetPiece implements transport.ChunkService.
func (h *Host) GetPiece(ctx context.Context, req *wire.GetPiece) (*wire.GetPieceReply, [][]byte, func(), error) {
	if err := h.hook(ctx, req); err != nil {
		return nil, nil, nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	data, ok := h.objects[req.GetObject()]
	if !ok {
		return nil, nil, nil, h.failed("piece", moraine.Lost)
	}
	h.pieces = append(h.pieces, req)
	data = data[req.GetOffset():][:req.GetLength()]
	reply := &wire.GetPieceReply{PayloadCrc: crc.Sum(data)}
	if h.faults.Garble {
		data = garbled(data)
	}
	return reply, [][]byte{data}, func() {}, nil
}
