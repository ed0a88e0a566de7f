package stripeio

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// The client reads evicted ranges from their object, through a chunkserver that has its bucket.
// It reads an object in pieces. Every client uses the same server first for the same piece, so
// that a thousand readers cost the store one read.

// objectRead is an object in a file's extents.
type objectRead struct {
	object     *wire.Object
	inode      uint64
	generation uint64
	capability []byte // as in Record
}

// maxPieceServers bounds the servers that one attempt to read a piece uses.
const maxPieceServers = 3

// readObject fills dst with the object's bytes from off on, piece by piece.
func (e *Engine) readObject(ctx context.Context, o *objectRead, off int64, dst []byte) error {
	piece := int64(o.object.Piece)
	for len(dst) > 0 {
		n := min(int64(len(dst)), piece-off%piece)
		if err := e.readPiece(ctx, o, off, dst[:n]); err != nil {
			return err
		}
		dst, off = dst[n:], off+n
	}
	return nil
}

// readPiece fills dst, which lies within one piece, from the servers in their order. When it
// returns nil the bytes are right; on error dst is undefined. Lost means that the object does
// not match the extents, which may be old.
func (e *Engine) readPiece(ctx context.Context, o *objectRead, off int64, dst []byte) error {
	hosts, err := e.Topology.pieceServers(ctx, o.object, uint64(off)/o.object.Piece)
	if err != nil {
		return err
	}
	if len(hosts) == 0 {
		e.Topology.doubt()
	}
	if err := e.reading.take(ctx, int64(len(dst))); err != nil {
		return err
	}
	var errs []error
	for _, h := range hosts[:min(len(hosts), maxPieceServers)] {
		err := e.getPiece(ctx, h.chunks, o, off, dst)
		if err == nil {
			e.metrics.PiecesGot.Inc()
			return nil
		}
		if ctx.Err() != nil {
			return retry.ContextErrorAfter(ctx, "read piece", err)
		}
		e.metrics.PieceErrors.Inc()
		e.log.Debug("a piece of an object could not be read", "object", o.object.Id, "host", h.id, "err", err)
		if !isBad(moraine.KindOf(err)) {
			e.Topology.doubt()
		}
		errs = append(errs, err)
	}
	return pieceError(o.object, errs)
}

// pieceError returns the error after all servers failed. Its kind lets the caller try again,
// unless each server said that the object is lost or wrong.
func pieceError(o *wire.Object, errs []error) error {
	kind := moraine.Unavailable
	all := func(is func(moraine.Kind) bool) bool {
		return !slices.ContainsFunc(errs, func(err error) bool { return !is(moraine.KindOf(err)) })
	}
	switch {
	case len(errs) == 0:
		errs = append(errs, fmt.Errorf("no chunkserver of bucket %q is alive", o.Bucket))
	case all(isBad):
		kind = moraine.Lost
	case all(isRefusal):
		kind = moraine.KindOf(errs[0])
	}
	return &moraine.Error{Op: "read piece", Ref: "object " + moraine.ID(o.Id).String(), Kind: kind, Err: errors.Join(errs...)}
}

// getPiece reads from one server. It tries again with a new token after a refusal. It tries
// again with verification of the server's memory if the bytes did not match their checksum.
func (e *Engine) getPiece(ctx context.Context, server transport.Chunks, o *objectRead, off int64, dst []byte) error {
	err := e.getPieceOnce(ctx, server, o, off, dst, false)
	if err != nil && isRefusal(moraine.KindOf(err)) && ctx.Err() == nil { // the token may be outdated
		if err = e.meta.Renew(ctx, true); err == nil {
			err = e.getPieceOnce(ctx, server, o, off, dst, false)
		}
	}
	if errors.Is(err, errOtherBytes) && ctx.Err() == nil {
		e.metrics.PieceErrors.Inc()
		e.log.Warn("piece checksum mismatch; the client reads the piece again", "object", moraine.ID(o.object.Id), "offset", off, "err", err)
		err = e.getPieceOnce(ctx, server, o, off, dst, true)
	}
	return err
}

// pieceTimeouts is how many times Config.GetTimeout one attempt to read a piece
// may take. The server may first have to read all of it from the store.
const pieceTimeouts = 3

func (e *Engine) getPieceOnce(ctx context.Context, server transport.Chunks, o *objectRead, off int64, dst []byte, verify bool) error {
	ctx, cancel := context.WithTimeout(ctx, pieceTimeouts*e.cfg.GetTimeout)
	defer cancel()
	sums := crc.SumsOf(ctx).Tally(dst)
	reply, n, err := server.GetPiece(ctx, &wire.GetPiece{Object: o.object.Id, Inode: o.inode, Generation: o.generation,
		Offset: uint64(off), Length: uint64(len(dst)), Verify: verify, Capability: o.capability}, dst, sums.Add)
	if err != nil {
		return err
	}
	if sum := sums.Sum(); n != len(dst) || sum != reply.PayloadCrc {
		return &moraine.Error{Op: "get piece", Kind: moraine.Corrupt,
			Err: fmt.Errorf("%w: received %d bytes with checksum %08x; the server sent %d with checksum %08x", errOtherBytes, n, sum, len(dst), reply.PayloadCrc)}
	}
	sums.Keep()
	return nil
}

// server is a host that serves pieces of objects.
type server struct {
	id     string
	bucket string // its name, without prefix
	chunks transport.Chunks
}

// pieceServers returns the live hosts with an object's bucket, in the order in which to use
// them for a piece. The order is by the hash of host, object and piece (rendezvous hashing),
// which all clients of all releases share. So one server reads a piece for all of them.
func (t *TopologyCache) pieceServers(ctx context.Context, o *wire.Object, piece uint64) ([]server, error) {
	if err := t.fresh(ctx); err != nil {
		return nil, err
	}
	type scored struct {
		server
		score uint64
	}
	var found []scored
	for _, s := range t.now.Load().servers {
		if s.bucket == o.Bucket {
			found = append(found, scored{s, pieceScore(s.id, o.Id, piece)})
		}
	}
	slices.SortFunc(found, func(a, b scored) int { return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.id, b.id)) })
	out := make([]server, len(found))
	for i, s := range found {
		out[i] = s.server
	}
	return out, nil
}

// pieceScore is XXH64 of the host's id followed by object and piece, 8 bytes
// each, little-endian.
func pieceScore(host string, object, piece uint64) uint64 {
	b := binary.LittleEndian.AppendUint64([]byte(host), object)
	return xxhash.Sum64(binary.LittleEndian.AppendUint64(b, piece))
}

// bucketOf returns the bucket of a host's s3://BUCKET/PREFIX.
func bucketOf(s string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(s, "s3://"), "/")
	return name
}
