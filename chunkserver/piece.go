package chunkserver

import (
	"context"
	"errors"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/capability"
	"github.com/morainefs/moraine/transport/wire"
)

// Bucket is what a chunkserver requires of an *object.Bucket.
type Bucket interface {
	// Get fills dst with the bytes of r from off on, or fails. It returns NotFound
	// or Conflict if the object is no longer there.
	Get(ctx context.Context, r object.Ref, off int64, dst []byte) error
}

const (
	// maxPiece is the length of the longest piece that is served.
	maxPiece = 16 << 20
	// sumBlock is how many checksums of an object are requested at a time.
	sumBlock = 4096
)

// GetPiece implements transport.ChunkService. It serves bytes of one piece of an
// object. It reads the piece from the bucket once for all waiting callers, and
// verifies it against its recorded checksum.
//
// The reply's checksum comes from the block checksums of the arrival, not from
// the bytes in memory. The caller thus detects a bit that flipped in memory,
// and calls again with verify. Bad bytes always become an error. It is Stale if
// the record is gone (the caller looks the file up again). It is Lost if the
// bucket no longer has the object, Corrupt if it has other bytes.
func (s *Server) GetPiece(ctx context.Context, req *wire.GetPiece) (*wire.GetPieceReply, [][]byte, func(), error) {
	data, sum, release, err := s.piece(ctx, req)
	s.deps.Metrics.Pieces.WithLabelValues(outcome(err)).Inc()
	if err != nil {
		return nil, nil, nil, err
	}
	s.deps.Metrics.PieceBytes.Add(float64(len(data)))
	return &wire.GetPieceReply{PayloadCrc: sum}, [][]byte{data}, release, nil
}

func (s *Server) piece(ctx context.Context, req *wire.GetPiece) (data []byte, sum uint32, release func(), err error) {
	const op = "chunkserver.GetPiece"
	ref := "object " + moraine.ID(req.Object).String()
	if s.pieces == nil {
		return nil, 0, nil, &moraine.Error{Op: op, Ref: s.cfg.Node, Kind: moraine.Unavailable, Err: errors.New("host has no bucket: set Bucket")}
	}
	if req.Object == 0 || req.Length == 0 || req.Length > maxPiece || req.Offset > object.MaxSize {
		return nil, 0, nil, &moraine.Error{Op: op, Ref: ref, Kind: moraine.InvalidArgument, Err: fmt.Errorf("range of %d bytes at offset %d is invalid", req.Length, req.Offset)}
	}
	claims, err := s.permits.readable(ctx, op, req.Capability)
	if err != nil {
		return nil, 0, nil, err
	}
	if claims != nil && (!capability.CoversObject(claims, req.Object, req.Offset, req.Length) || req.Inode != claims.Inode) {
		return nil, 0, nil, notCovered(op, ref)
	}
	rec, err := s.pieces.record(ctx, req.Object, req.Offset)
	if err != nil {
		return nil, 0, nil, err
	}
	o := rec.object
	first, last := req.Offset/o.Piece, (req.Offset+req.Length-1)/o.Piece
	if req.Offset+req.Length > o.Size || first != last {
		return nil, 0, nil, &moraine.Error{Op: op, Ref: ref, Kind: moraine.InvalidArgument,
			Err: fmt.Errorf("range of %d bytes at offset %d does not fit an object of %d bytes in pieces of %d", req.Length, req.Offset, o.Size, o.Piece)}
	}
	if err := mayTouch(ctx, op, o.Tenant, false); err != nil {
		return nil, 0, nil, err
	}
	p, sum, err := s.pieces.lend(ctx, pieceKey{req.Object, first}, int64(req.Offset-first*o.Piece), int64(req.Length), req.Verify)
	if err != nil {
		return nil, 0, nil, err
	}
	if peer := transport.PeerFrom(ctx); peer == nil || peer.Role != transport.RoleChunkserver {
		s.pieces.wantStaged(req.Inode, o) // a chunkserver reads because it stages
	}
	return p.data[req.Offset-first*o.Piece:][:req.Length], sum, func() { s.pieces.release(p) }, nil
}

// lend returns a piece, which the caller releases, and the checksum of one of its
// ranges. It computes that from the checksums that the piece had when it arrived. It
// reads a piece that is damaged in memory again, once.
func (p *pieces) lend(ctx context.Context, key pieceKey, off, n int64, verify bool) (pc *piece, sum uint32, err error) {
	for range 2 {
		if pc, err = p.get(ctx, key); err != nil {
			return nil, 0, err
		}
		if sum, err = pc.sumOf(off, n, verify); err == nil {
			return pc, sum, nil
		}
		p.discard(pc, err)
		p.release(pc)
	}
	return nil, 0, err
}
