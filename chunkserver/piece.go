package chunkserver

import (
	"context"
	"errors"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// Bucket is what a chunkserver needs of an *object.Bucket.
type Bucket interface {
	// Get fills dst with the bytes of r from off on, or fails: NotFound or
	// Conflict where the object is not there any more.
	Get(ctx context.Context, r object.Ref, off int64, dst []byte) error
}

const (
	// maxPiece is the length of the longest piece that is served.
	maxPiece = 16 << 20
	// sumBlock is how many sums of an object are asked for at a time.
	sumBlock = 4096
)

// GetPiece implements transport.ChunkService: it serves bytes of one piece of
// an object, which is read from the bucket once for all who ask, and held
// against its recorded sum. What is not right is an error, never other bytes:
// Stale where the record is gone (the caller looks at the file again), Lost
// where the bucket does not have the object any more, Corrupt where it has
// other bytes.
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
		return nil, 0, nil, &moraine.Error{Op: op, Ref: s.cfg.Node, Kind: moraine.Unavailable, Err: errors.New("this host has no bucket")}
	}
	if req.Object == 0 || req.Length == 0 || req.Length > maxPiece || req.Offset > object.MaxSize {
		return nil, 0, nil, &moraine.Error{Op: op, Ref: ref, Kind: moraine.InvalidArgument, Err: fmt.Errorf("%d bytes at %d", req.Length, req.Offset)}
	}
	rec, err := s.pieces.record(ctx, req.Object, req.Offset)
	if err != nil {
		return nil, 0, nil, err
	}
	o := rec.object
	first, last := req.Offset/o.Piece, (req.Offset+req.Length-1)/o.Piece
	if req.Offset+req.Length > o.Size || first != last {
		return nil, 0, nil, &moraine.Error{Op: op, Ref: ref, Kind: moraine.InvalidArgument,
			Err: fmt.Errorf("%d bytes at %d of an object of %d, in pieces of %d", req.Length, req.Offset, o.Size, o.Piece)}
	}
	if err := mayTouch(ctx, op, o.Tenant, false); err != nil {
		return nil, 0, nil, err
	}
	p, err := s.pieces.get(ctx, pieceKey{req.Object, first})
	if err != nil {
		return nil, 0, nil, err
	}
	if peer := transport.PeerFrom(ctx); peer == nil || peer.Role != transport.RoleChunkserver {
		s.pieces.wantStaged(req.Inode, o) // a chunkserver reads because it stages
	}
	data = p.data[req.Offset-first*o.Piece:][:req.Length]
	sum = p.sum
	if len(data) != len(p.data) {
		sum = crc.Sum(data)
	}
	return data, sum, func() { s.pieces.release(p) }, nil
}
