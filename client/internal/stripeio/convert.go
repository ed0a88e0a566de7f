package stripeio

import (
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// schemeToWire returns nil for the zero scheme: the service chooses.
func schemeToWire(s moraine.Scheme) *wire.Scheme {
	if s.K == 0 {
		return nil
	}
	return &wire.Scheme{K: uint32(s.K), M: uint32(s.M)}
}

// schemeFromWire returns the zero scheme, which is not valid, for what is none.
func schemeFromWire(w *wire.Scheme) moraine.Scheme {
	k, m := w.GetK(), w.GetM()
	if k == 0 || k > moraine.MaxChunks || m > moraine.MaxChunks || k+m > moraine.MaxChunks {
		return moraine.Scheme{}
	}
	return moraine.Scheme{K: uint8(k), M: uint8(m)}
}

func devicesFromWire(w []uint32) []moraine.DeviceID {
	out := make([]moraine.DeviceID, len(w))
	for i, d := range w {
		out[i] = moraine.DeviceID(d)
	}
	return out
}

func wireDevices(ids []moraine.DeviceID) []uint32 {
	if len(ids) == 0 {
		return nil
	}
	out := make([]uint32, len(ids))
	for i, id := range ids {
		out[i] = uint32(id)
	}
	return out
}

func placementFromWire(w *wire.Placement) placement {
	return placement{Scheme: schemeFromWire(w.Scheme), devices: devicesFromWire(w.Devices), protects: w.Protects}
}

// Record is the record of a stripe, and what its chunks are read with.
type Record struct {
	moraine.Stripe
	// capability is what the service gave to read it; nil where the session's token
	// admits to it. It ends with the page of extents that it came with.
	capability []byte
	// permit is its term, and inode the file whose extents it came with.
	permit permit
	inode  uint64
	// limited is whether it is for some bytes of the stripe only, as the others are not for
	// this session to read.
	limited bool
	// Grant is that of a stripe which this client put and has not committed yet.
	Grant *grant
}

// rebuildable reports whether what is lost of a stripe, or late, can be made of other chunks.
func (s *Record) rebuildable() bool {
	return s.Scheme.M > 0 && (!s.limited || s.Scheme.IsCopies())
}

// StripeFromWire returns a stripe's record, or an error where no chunk could be
// held against it.
func StripeFromWire(w *wire.Stripe) (*Record, error) {
	scheme := schemeFromWire(w.GetScheme())
	bad := func(format string, args ...any) (*Record, error) {
		return nil, &moraine.Error{Op: "stripe record", Ref: moraine.StripeID(w.GetId()).String(), Kind: moraine.Corrupt,
			Err: fmt.Errorf(format, args...)}
	}
	if !scheme.Valid() || len(w.Chunks) != scheme.Chunks() {
		return bad("scheme %d+%d with %d chunks", w.GetScheme().GetK(), w.GetScheme().GetM(), len(w.Chunks))
	}
	if w.Length == 0 || w.Length > uint64(scheme.K)*moraine.MaxChunkSize {
		return bad("length %d", w.Length)
	}
	if w.Cipher != 0 {
		return nil, &moraine.Error{Op: "stripe record", Ref: moraine.StripeID(w.Id).String(), Kind: moraine.NewerFormat,
			Err: fmt.Errorf("cipher %d is not known", w.Cipher)}
	}
	s := &Record{Stripe: moraine.Stripe{ID: moraine.StripeID(w.Id), Scheme: scheme, Version: moraine.LayoutVersion(w.Version),
		Tenant: moraine.Tenant(w.Tenant), Length: int64(w.Length), LiveBytes: int64(w.LiveBytes),
		RefCount: w.RefCount, KeyID: w.KeyId, Chunks: make([]moraine.ChunkState, len(w.Chunks))}, capability: w.Capability}
	for i, c := range w.Chunks {
		s.Chunks[i] = moraine.ChunkState{Device: moraine.DeviceID(c.Device), CRC: c.Crc,
			Level: moraine.Level(min(c.Level, 255)), Epoch: moraine.Epoch(c.Epoch)}
	}
	return s, nil
}
