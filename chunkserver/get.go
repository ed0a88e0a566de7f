package chunkserver

import (
	"context"
	"fmt"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/capability"
	"github.com/morainefs/moraine/transport/wire"
)

// GetChunk implements transport.ChunkService. It lends bytes that the device has
// read and verified, or bytes in memory with the checksums by which they were
// verified. The caller verifies the bytes against the reply's checksum, and the
// checksums against its stripe record.
func (s *Server) GetChunk(ctx context.Context, req *wire.GetChunk) (*wire.GetChunkReply, [][]byte, func(), error) {
	start := s.deps.Clock.Now()
	v, err := s.get(ctx, req)
	if err != nil {
		s.deps.Metrics.Gets.WithLabelValues(outcome(err)).Inc()
		return nil, nil, nil, err
	}
	reply := s.got(v, start)
	return reply, [][]byte{v.Data}, v.Release, nil
}

// GetCached is GetChunk of a chunk in memory. The transport calls it on the connection's reader: it
// waits for nothing. Otherwise, or if GetChunk would fail, ok is false.
func (s *Server) GetCached(ctx context.Context, req *wire.GetChunk) (reply *wire.GetChunkReply, payload [][]byte, release func(), ok bool) {
	start := s.deps.Clock.Now()
	d, id, err := s.admitGet(ctx, req)
	if err != nil || req.Verify {
		return nil, nil, nil, false
	}
	v := d.tier.LendCached(id, int64(req.Offset), int64(req.Length))
	if v == nil {
		return nil, nil, nil, false
	}
	if isRight(&v.Header, req) != nil {
		v.Release()
		return nil, nil, nil, false
	}
	return s.got(v, start), [][]byte{v.Data}, v.Release, true
}

// got counts a served view, and returns the reply.
func (s *Server) got(v *tiers.View, start time.Time) *wire.GetChunkReply {
	s.deps.Metrics.Gets.WithLabelValues(outcome(nil)).Inc()
	s.deps.Metrics.GetBytes.Add(float64(len(v.Data)))
	s.deps.Metrics.GetSeconds.Observe(s.since(start))
	return &wire.GetChunkReply{
		Version: uint32(v.Header.Version), Crc: v.Header.CRC, PayloadCrc: v.CRC, ChunkLength: uint64(v.Header.Length),
	}
}

// admitGet checks a read, and returns the device and the chunk.
func (s *Server) admitGet(ctx context.Context, req *wire.GetChunk) (*device, moraine.ChunkID, error) {
	id := chunkID(req.Stripe, req.Index)
	if req.Index >= moraine.MaxChunks || req.Offset > moraine.MaxChunkSize || req.Length > moraine.MaxChunkSize {
		return nil, id, &moraine.Error{Op: opGet, Ref: id.String(), Kind: moraine.InvalidArgument, Err: fmt.Errorf("range of %d bytes at offset %d of chunk %d is invalid", req.Length, req.Offset, req.Index)}
	}
	if err := mayTouch(ctx, opGet, req.Tenant, false); err != nil {
		return nil, id, err
	}
	if claims, err := s.permits.readable(ctx, opGet, req.Capability); err != nil {
		return nil, id, err
	} else if claims != nil && !capability.CoversRead(claims, req.Stripe, req.Index, req.Offset, req.Length) {
		return nil, id, notCovered(opGet, id.String())
	}
	d, err := s.device(opGet, req.Device)
	return d, id, err
}

const opGet = "chunkserver.Get"

func (s *Server) get(ctx context.Context, req *wire.GetChunk) (*tiers.View, error) {
	d, id, err := s.admitGet(ctx, req)
	if err != nil {
		return nil, err
	}
	lend := d.tier.Lend // the caller verifies the bytes against their checksum
	if req.Verify {
		lend = d.tier.View
	}
	v, err := lend(ctx, id, int64(req.Offset), int64(req.Length))
	if err != nil {
		return nil, err
	}
	if err := isRight(&v.Header, req); err != nil {
		v.Release()
		return nil, &moraine.Error{Op: opGet, Ref: id.String(), Kind: moraine.KindOf(err), Err: err}
	}
	return v, nil
}

// isRight compares the chunk found with the requested one. The tenant of the
// chunk itself counts, so that a caller cannot name another tenant's chunk. The
// layout version does not count. A chunk carries the version under which it was
// put, and the contents of a chunk never change. The caller verifies the bytes
// against the record's CRC. A chunk of a newer version with that CRC is right,
// and one with another CRC is corrupt, whatever its version.
func isRight(h *tiers.Header, req *wire.GetChunk) error {
	if uint32(h.Tenant) != req.Tenant {
		return &moraine.Error{Kind: moraine.PermissionDenied, Err: fmt.Errorf("chunk belongs to tenant %d", h.Tenant)}
	}
	return nil
}

// SyncDevices implements transport.ChunkService. It returns when all chunks that
// were dirty at the call are on the devices. It is for administrators and servers:
// a client names the level of its puts instead.
func (s *Server) SyncDevices(ctx context.Context, req *wire.SyncDevices) (*wire.SyncDevicesReply, error) {
	const op = "chunkserver.Sync"
	if err := s.permits.mayInspect(ctx, op); err != nil {
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
	if err := s.permits.mayInspect(ctx, "chunkserver.Stat"); err != nil {
		return nil, err
	}
	f, newest := s.fleet.Load(), s.meta.newest()
	reply := &wire.StatDevicesReply{SeenIncarnation: uint64(newest.Number), SeenMark: transport.MarkBytes(newest)}
	if f == nil && newest.Number != 0 {
		return reply, nil // needed by a person who forces a quorum
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
