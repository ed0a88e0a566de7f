package transport

import (
	"context"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// NewMetadataClient returns the metadata service behind c.
func NewMetadataClient(c Caller) Metadata { return metadataClient{c} }

type metadataClient struct{ caller Caller }

// Do implements Metadata.
func (m metadataClient) Do(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	resp := new(wire.MetaResponse)
	if _, err := m.caller.Call(ctx, &Call{Kind: KindMeta, Class: Control, Message: req, Reply: resp}); err != nil {
		return nil, err
	}
	if resp.Error != nil {
		return nil, ErrorFromWire(resp.Error)
	}
	return resp, nil
}

// NewChunksClient returns the chunkserver behind c.
func NewChunksClient(c Caller) Chunks { return chunksClient{c} }

type chunksClient struct{ caller Caller }

// Put implements Chunks.
func (s chunksClient) Put(ctx context.Context, req *wire.PutChunk, data ...[]byte) (*wire.PutChunkReply, error) {
	reply := new(wire.PutChunkReply)
	if _, err := s.caller.Call(ctx, &Call{Kind: KindPutChunk, Class: Bulk, Message: req, Payload: data, Reply: reply}); err != nil {
		return nil, err
	}
	if reply.Error != nil {
		return nil, ErrorFromWire(reply.Error)
	}
	return reply, nil
}

// Get implements Chunks.
func (s chunksClient) Get(ctx context.Context, req *wire.GetChunk, dst []byte, each func([]byte)) (*wire.GetChunkReply, int, error) {
	if uint64(len(dst)) < req.Length {
		return nil, 0, &moraine.Error{Op: "transport.Get", Kind: moraine.InvalidArgument,
			Err: fmt.Errorf("request for %d bytes with a buffer of %d", req.Length, len(dst))}
	}
	reply := new(wire.GetChunkReply)
	n, err := s.caller.Call(ctx, &Call{Kind: KindGetChunk, Class: Bulk, Message: req, Reply: reply, Dst: dst[:req.Length], Each: each})
	if err != nil {
		return nil, 0, err
	}
	if reply.Error != nil {
		return nil, 0, ErrorFromWire(reply.Error)
	}
	return reply, n, nil
}

// GetPiece implements Chunks.
func (s chunksClient) GetPiece(ctx context.Context, req *wire.GetPiece, dst []byte, each func([]byte)) (*wire.GetPieceReply, int, error) {
	if uint64(len(dst)) < req.Length {
		return nil, 0, &moraine.Error{Op: "transport.GetPiece", Kind: moraine.InvalidArgument,
			Err: fmt.Errorf("request for %d bytes with a buffer of %d", req.Length, len(dst))}
	}
	reply := new(wire.GetPieceReply)
	n, err := s.caller.Call(ctx, &Call{Kind: KindGetPiece, Class: Bulk, Message: req, Reply: reply, Dst: dst[:req.Length], Each: each})
	if err != nil {
		return nil, 0, err
	}
	if reply.Error != nil {
		return nil, 0, ErrorFromWire(reply.Error)
	}
	return reply, n, nil
}

// Sync implements Chunks.
func (s chunksClient) Sync(ctx context.Context, req *wire.SyncDevices) (*wire.SyncDevicesReply, error) {
	reply := new(wire.SyncDevicesReply)
	if _, err := s.caller.Call(ctx, &Call{Kind: KindSyncDevices, Class: Bulk, Message: req, Reply: reply}); err != nil {
		return nil, err
	}
	if reply.Error != nil {
		return nil, ErrorFromWire(reply.Error)
	}
	return reply, nil
}

// Stat implements Chunks. It uses a control connection, which needs no token.
func (s chunksClient) Stat(ctx context.Context, req *wire.StatDevices) (*wire.StatDevicesReply, error) {
	reply := new(wire.StatDevicesReply)
	if _, err := s.caller.Call(ctx, &Call{Kind: KindStatDevices, Class: Control, Message: req, Reply: reply}); err != nil {
		return nil, err
	}
	if reply.Error != nil {
		return nil, ErrorFromWire(reply.Error)
	}
	return reply, nil
}
