package transport

import (
	"context"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// ChunkService is a chunkserver as its transport sees it. Methods may be called
// concurrently. ctx carries the caller (PeerFrom).
type ChunkService interface {
	// PutChunk stores p, which it must read or discard before it returns.
	PutChunk(ctx context.Context, req *wire.PutChunk, p Payload) (*wire.PutChunkReply, error)
	// GetChunk returns the reply and the payload that follows it. The payload does
	// not change until release (not nil if there is a payload) is called, once. On
	// error there is nothing to release.
	GetChunk(ctx context.Context, req *wire.GetChunk) (reply *wire.GetChunkReply, payload [][]byte, release func(), err error)
	// GetPiece does the same for bytes of an object.
	GetPiece(ctx context.Context, req *wire.GetPiece) (reply *wire.GetPieceReply, payload [][]byte, release func(), err error)
	SyncDevices(ctx context.Context, req *wire.SyncDevices) (*wire.SyncDevicesReply, error)
	StatDevices(ctx context.Context, req *wire.StatDevices) (*wire.StatDevicesReply, error)
}

// cachedChunks is an optional interface of a ChunkService, which answers from memory. The reader
// of a connection then serves such a request itself, instead of waking another goroutine.
type cachedChunks interface {
	// GetCached is GetChunk where it succeeds without waiting for anything: for a disk, another
	// request, or a limit. Otherwise ok is false, and nothing has happened.
	GetCached(ctx context.Context, req *wire.GetChunk) (reply *wire.GetChunkReply, payload [][]byte, release func(), ok bool)
}

// atOnceHandler is an optional interface of a Handler.
type atOnceHandler interface {
	// serveAtOnce is Serve where it succeeds without waiting; nil: nothing has happened.
	serveAtOnce(ctx context.Context, req *Request) *Response
}

// HandlerForMetadata serves m. It refuses a request without the fields that its
// kind requires; a request for a chunkserver is Unimplemented.
func HandlerForMetadata(m Metadata) Handler { return metadataHandler{m} }

type metadataHandler struct{ m Metadata }

// Serve implements Handler.
func (h metadataHandler) Serve(ctx context.Context, req *Request) (*Response, error) {
	if err := refusePayload(req); err != nil {
		return nil, err
	}
	r, ok := req.Message.(*wire.MetaRequest)
	if !ok {
		return nil, unimplemented(req)
	}
	resp, err := h.m.Do(ctx, r)
	if err != nil {
		return nil, err
	}
	return &Response{Message: resp}, nil
}

// HandlerForChunks serves s. Chunks use only bulk connections, so that every access
// needs a token.
func HandlerForChunks(s ChunkService) Handler {
	cached, _ := s.(cachedChunks)
	return chunkHandler{s, cached}
}

type chunkHandler struct {
	s      ChunkService
	cached cachedChunks // nil: it serves nothing at once
}

// maxAtOnce is the most bytes of an answer that the reader of a connection writes. It is
// batchPayload, so that the answer leaves in one system call.
const maxAtOnce = batchPayload

// serveAtOnce implements atOnceHandler.
func (h chunkHandler) serveAtOnce(ctx context.Context, req *Request) *Response {
	r, ok := req.Message.(*wire.GetChunk)
	if !ok || h.cached == nil || req.Class != Bulk || r.Length > maxAtOnce {
		return nil
	}
	reply, payload, release, ok := h.cached.GetCached(ctx, r)
	if !ok {
		return nil
	}
	return &Response{Message: reply, Payload: payload, Release: release}
}

// Serve implements Handler.
func (h chunkHandler) Serve(ctx context.Context, req *Request) (*Response, error) {
	if req.Class != Bulk && !req.Kind.info().control {
		return nil, &moraine.Error{Op: req.Kind.String(), Kind: moraine.PermissionDenied,
			Err: fmt.Errorf("request is not allowed on a connection of class %v", req.Class)}
	}
	if r, ok := req.Message.(*wire.PutChunk); ok {
		return h.put(ctx, r, req.Payload)
	}
	if err := refusePayload(req); err != nil {
		return nil, err
	}
	switch r := req.Message.(type) {
	case *wire.GetChunk:
		reply, payload, release, err := h.s.GetChunk(ctx, r)
		if err != nil {
			return nil, err
		}
		return &Response{Message: reply, Payload: payload, Release: release}, nil
	case *wire.GetPiece:
		reply, payload, release, err := h.s.GetPiece(ctx, r)
		if err != nil {
			return nil, err
		}
		return &Response{Message: reply, Payload: payload, Release: release}, nil
	case *wire.SyncDevices:
		reply, err := h.s.SyncDevices(ctx, r)
		if err != nil {
			return nil, err
		}
		return &Response{Message: reply}, nil
	case *wire.StatDevices:
		reply, err := h.s.StatDevices(ctx, r)
		if err != nil {
			return nil, err
		}
		return &Response{Message: reply}, nil
	}
	return nil, unimplemented(req)
}

func (h chunkHandler) put(ctx context.Context, r *wire.PutChunk, p Payload) (*Response, error) {
	if p == nil {
		p = emptyPayload{}
	}
	reply, err := h.s.PutChunk(ctx, r, p)
	if err != nil {
		return nil, err
	}
	return &Response{Message: reply}, nil
}

// emptyPayload is the payload of a chunk without bytes.
type emptyPayload struct{}

func (emptyPayload) Len() int                            { return 0 }
func (emptyPayload) ReadInto([]byte, func([]byte)) error { return nil }
func (emptyPayload) Discard() error                      { return nil }

func refusePayload(req *Request) error {
	if req.Payload == nil {
		return nil
	}
	if err := req.Payload.Discard(); err != nil {
		return err
	}
	return &moraine.Error{Op: req.Kind.String(), Kind: moraine.InvalidArgument, Err: fmt.Errorf("unexpected payload of %d bytes", req.Payload.Len())}
}

func unimplemented(req *Request) error {
	return &moraine.Error{Op: req.Kind.String(), Kind: moraine.Unimplemented, Err: fmt.Errorf("server does not support this request")}
}
