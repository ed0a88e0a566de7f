package repair

import (
	"context"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport/wire"
)

// CheckChunks judges a slice of a device's chunks for an administrator who searches for faults
// (`moraine fsck`). It uses the rules of ReportChunks in one view, without changing anything. A
// finding may be about to be fixed: the caller repeats the check after a while, with a new list
// from the device. While devices have not reported since the metadata was restored, it reports
// nothing as missing, because they may have it.
func (k *Reports) CheckChunks(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	slice := c.Req.GetCheckChunks().GetSlice()
	if err := checkSlice(slice); err != nil {
		return nil, err
	}
	if err := k.Store.ReadBarrier(ctx); err != nil {
		return nil, err
	}
	reply := &wire.CheckChunksReply{}
	err := k.Store.View(func(r kvtx.Reader, applied uint64) error {
		reply.Applied = applied
		info, err := kvtx.Cluster(k.Machine.View(r))
		if err != nil || slice == nil {
			return err
		}
		reply.Incarnation = uint64(info.Incarnation)
		if err := behind(slice, applied); err != nil {
			return err
		}
		unreported, err := fleet.Unreported(k.Machine.View(r))
		if err != nil {
			return err
		}
		if reply.Unreported = uint64(unreported); unreported == 0 {
			if err := k.checkMissing(ctx, r, slice, reply); err != nil {
				return err
			}
		}
		return k.checkHeld(ctx, r, slice, reply)
	})
	return &wire.MetaResponse{Result: &wire.MetaResponse_CheckChunks{CheckChunks: reply}}, err
}

// checkMissing finds recorded chunks that are not in the slice, and cuts the slice if they are too
// many for one answer.
func (k *Reports) checkMissing(ctx context.Context, r kvtx.Reader, slice *wire.ReportChunks, reply *wire.CheckChunksReply) error {
	f := &findings{}
	if err := k.findMissing(ctx, r, slice, f); err != nil {
		return err
	}
	if f.missing >= k.cfg.MaxMissing {
		reply.To = f.repairs[len(f.repairs)-1].Stripe
	}
	for _, item := range f.repairs {
		if reply.To != 0 && item.Stripe >= reply.To {
			break // the chunks are in order
		}
		found := &wire.ChunkFinding{Fault: wire.ChunkFault_CHUNK_FAULT_MISSING, Stripe: item.Stripe, Index: item.Index}
		if err := k.describeFinding(r, found); err != nil {
			return err
		}
		reply.Findings = append(reply.Findings, found)
	}
	return nil
}

// checkHeld judges the chunks in the slice.
func (k *Reports) checkHeld(ctx context.Context, r kvtx.Reader, slice *wire.ReportChunks, reply *wire.CheckChunksReply) error {
	for _, chunk := range slice.Chunks {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if reply.To != 0 && chunk.Stripe >= reply.To {
			continue
		}
		v, err := fleet.ClassifyChunk(k.Machine.View(r), moraine.DeviceID(slice.Device), chunk, 0)
		if err == nil && v.Fate == fleet.Live {
			v.Fate, err = k.fits(r, chunk)
		}
		if err != nil {
			return err
		}
		found := &wire.ChunkFinding{Stripe: chunk.Stripe, Index: chunk.Index, Version: chunk.Version, Length: chunk.Length}
		switch v.Fate {
		case fleet.Live:
			reply.Live, reply.LiveBytes = reply.Live+1, reply.LiveBytes+chunk.Length
			continue
		case fleet.Damaged:
			found.Fault = wire.ChunkFault_CHUNK_FAULT_DAMAGED
		case fleet.Unknown:
			found.Fault = wire.ChunkFault_CHUNK_FAULT_UNEXPLAINED
		default:
			reply.Pending, reply.PendingBytes = reply.Pending+1, reply.PendingBytes+chunk.Length
			continue
		}
		if err := k.describeFinding(r, found); err != nil {
			return err
		}
		reply.Findings = append(reply.Findings, found)
	}
	return nil
}

// fits returns the fate of a chunk whose checksum matches a record; its length must match too.
func (k *Reports) fits(r kvtx.Reader, chunk *wire.ChunkReport) (fleet.Fate, error) {
	s, _, err := fleet.StripeOnRecord(k.Machine.View(r), moraine.StripeID(chunk.Stripe))
	if err == nil && s != nil && s.Scheme.ChunkLen(s.Length) != int64(chunk.Length) {
		return fleet.Damaged, nil
	}
	return fleet.Live, err
}

// describeFinding adds the data of the stripe's record.
func (k *Reports) describeFinding(r kvtx.Reader, found *wire.ChunkFinding) error {
	s, queued, err := fleet.StripeOnRecord(k.Machine.View(r), moraine.StripeID(found.Stripe))
	if err != nil || s == nil {
		return err
	}
	found.Scheme, found.Queued, found.Layout = wire.SchemeToWire(s.Scheme), queued, uint32(s.Version)
	if found.Fault == wire.ChunkFault_CHUNK_FAULT_MISSING {
		found.Length = uint64(s.Scheme.ChunkLen(s.Length))
	}
	return nil
}
