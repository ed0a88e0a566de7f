package fuse_test

import (
	"context"
	"strings"
	"sync"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// gate stands between a client and the servers. It passes requests of one kind,
// fails them, or blocks them until their caller stops waiting or the gate opens.
// Kinds are those of the metadata service ("create", "getextents") and "get_chunk".
type gate struct {
	transport.Dialer

	mu     sync.Mutex // guards the fields below
	kind   string
	fail   moraine.Kind  // of the error that they get; 0: they are held
	opened chan struct{} // nil: the gate is open
	met    int           // requests of the kind since it was closed
}

func (g *gate) over(d transport.Dialer) transport.Dialer { g.Dialer = d; return g }

func (g *gate) Metadata(addrs []string) transport.Metadata {
	return gatedMetadata{g.Dialer.Metadata(addrs), g}
}

func (g *gate) Chunks(node string, addrs []string) transport.Chunks {
	return gatedChunks{g.Dialer.Chunks(node, addrs), g}
}

// hold blocks requests of a kind until open, except the first skip of them.
func (g *gate) hold(kind string, skip int) { g.shut(kind, skip, 0) }

// failing refuses requests of a kind until open, except the first skip of them.
func (g *gate) failing(kind string, skip int) { g.shut(kind, skip, moraine.PermissionDenied) }

// silent fails requests of a kind until open as a server does that is down, but for the
// first skip of them: the client tries again.
func (g *gate) silent(kind string, skip int) { g.shut(kind, skip, moraine.Unavailable) }

func (g *gate) shut(kind string, skip int, fail moraine.Kind) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.kind, g.fail, g.opened, g.met = kind, fail, make(chan struct{}), -skip
}

// open passes everything, and returns how many requests the gate met. It may be
// called twice.
func (g *gate) open() (met int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened != nil {
		close(g.opened)
		g.opened = nil
	}
	return max(g.met, 0)
}

// count returns how many requests the gate has met since it was closed.
func (g *gate) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return max(g.met, 0)
}

func (g *gate) pass(ctx context.Context, kind string) error {
	g.mu.Lock()
	opened, fail := g.opened, g.fail
	if opened == nil || kind != g.kind {
		g.mu.Unlock()
		return nil
	}
	g.met++
	skip := g.met <= 0
	g.mu.Unlock()
	if skip {
		return nil
	}
	if fail != 0 {
		return &moraine.Error{Op: kind, Kind: fail}
	}
	select {
	case <-opened:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

type gatedMetadata struct {
	transport.Metadata
	g *gate
}

func (m gatedMetadata) Do(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	r := req.ProtoReflect()
	op := r.WhichOneof(r.Descriptor().Oneofs().ByName("op"))
	if err := m.g.pass(ctx, strings.ReplaceAll(string(op.Name()), "_", "")); err != nil {
		return nil, err
	}
	return m.Metadata.Do(ctx, req)
}

type gatedChunks struct {
	transport.Chunks
	g *gate
}

func (c gatedChunks) Get(ctx context.Context, req *wire.GetChunk, dst []byte, each func([]byte)) (*wire.GetChunkReply, int, error) {
	if err := c.g.pass(ctx, "get_chunk"); err != nil {
		return nil, 0, err
	}
	return c.Chunks.Get(ctx, req, dst, each)
}
