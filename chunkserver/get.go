package chunkserver

import (
	"context"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/capability"
	"github.com/morainefs/moraine/transport/wire"
)

// GetChunk implements transport.ChunkService: it lends the bytes that the
// device has read and verified, or that are in memory with the sums that they were
// verified by. The caller holds the bytes against the sum of the reply, and the sums
// against its stripe record.
func (s *Server) GetChunk(ctx context.Context, req *wire.GetChunk) (*wire.GetChunkReply, [][]byte, func(), error) {
	start := s.deps.Clock.Now()
	v, err := s.get(ctx, req)
	s.deps.Metrics.Gets.WithLabelValues(outcome(err)).Inc()
	if err != nil {
		return nil, nil, nil, err
	}
	s.deps.Metrics.GetBytes.Add(float64(len(v.Data)))
	s.deps.Metrics.GetSeconds.Observe(s.since(start))
	return &wire.GetChunkReply{
		Version: uint32(v.Header.Version), Crc: v.Header.CRC, PayloadCrc: v.CRC, ChunkLength: uint64(v.Header.Length),
	}, [][]byte{v.Data}, v.Release, nil
}

func (s *Server) get(ctx context.Context, req *wire.GetChunk) (*tiers.View, error) {
	const op = "chunkserver.Get"
	id := chunkID(req.Stripe, req.Index)
	if req.Index >= moraine.MaxChunks || req.Offset > moraine.MaxChunkSize || req.Length > moraine.MaxChunkSize {
		return nil, &moraine.Error{Op: op, Ref: id.String(), Kind: moraine.InvalidArgument, Err: fmt.Errorf("%d bytes at %d of chunk %d", req.Length, req.Offset, req.Index)}
	}
	if err := mayTouch(ctx, op, req.Tenant, false); err != nil {
		return nil, err
	}
	if claims, err := s.readable(ctx, op, req.Capability); err != nil {
		return nil, err
	} else if claims != nil && !capability.CoversRead(claims, req.Stripe, req.Index, req.Offset, req.Length) {
		return nil, notCovered(op, id.String())
	}
	d, err := s.device(op, req.Device)
	if err != nil {
		return nil, err
	}
	lend := d.tier.Lend // the caller holds what comes against its sum
	if req.Verify {
		lend = d.tier.View
	}
	v, err := lend(ctx, id, int64(req.Offset), int64(req.Length))
	if err != nil {
		return nil, err
	}
	if err := isRight(&v.Header, req); err != nil {
		v.Release()
		return nil, &moraine.Error{Op: op, Ref: id.String(), Kind: moraine.KindOf(err), Err: err}
	}
	return v, nil
}

// isRight holds the chunk that is here against the one that is meant. The
// tenant is checked on the chunk itself: a caller cannot name another's. The
// layout version is not: a chunk carries the one under which it was put, and what a
// chunk of a stripe holds never changes. That the bytes are the right ones the
// caller tells by the record's CRC: one of a newer version with that CRC is right,
// and one with another CRC is corrupt, whatever its version.
func isRight(h *tiers.Header, req *wire.GetChunk) error {
	if uint32(h.Tenant) != req.Tenant {
		return &moraine.Error{Kind: moraine.PermissionDenied, Err: fmt.Errorf("the chunk belongs to tenant %d", h.Tenant)}
	}
	return nil
}

// SyncDevices implements transport.ChunkService. It returns when all that was dirty
// when it was asked for is on the devices. It is for administrators and servers: a client
// names the level that its puts are to reach.
func (s *Server) SyncDevices(ctx context.Context, req *wire.SyncDevices) (*wire.SyncDevicesReply, error) {
	const op = "chunkserver.Sync"
	if err := s.mayInspect(ctx, op); err != nil {
		return nil, err
	}
	devices := req.Devices
	if len(devices) == 0 {
		if f := s.fleet.Load(); f != nil {
			for id := range f.byID {
				devices = append(devices, uint32(id))
			}
		}
	}
	for _, id := range devices {
		d, err := s.device(op, id)
		if err != nil {
			return nil, err
		}
		if err := d.tier.SyncAll(ctx); err != nil {
			return nil, err
		}
	}
	return &wire.SyncDevicesReply{}, nil
}

// StatDevices implements transport.ChunkService. It is for administrators and servers.
func (s *Server) StatDevices(ctx context.Context, req *wire.StatDevices) (*wire.StatDevicesReply, error) {
	if req.List != nil {
		return s.listChunks(ctx, req.List)
	}
	if err := s.mayInspect(ctx, "chunkserver.Stat"); err != nil {
		return nil, err
	}
	f, heard := s.fleet.Load(), s.NewestIncarnation()
	reply := &wire.StatDevicesReply{HeardIncarnation: uint64(heard.Number), HeardMark: transport.MarkBytes(heard)}
	if f == nil && heard.Number != 0 {
		return reply, nil // what a person who forces a quorum wants to know
	}
	if f == nil {
		return nil, &moraine.Error{Op: "chunkserver.Stat", Ref: s.cfg.Node, Kind: moraine.Unavailable}
	}
	for _, d := range f.devices {
		w := d.describe()
		w.Host = s.cfg.Node
		reply.Devices = append(reply.Devices, w)
	}
	return reply, nil
}
