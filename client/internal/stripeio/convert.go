package stripeio

import (
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

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
	return placement{Scheme: wire.SchemeFromWire(w.Scheme), devices: devicesFromWire(w.Devices), protects: w.Protects}
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

// RecordFromWire returns a stripe's record, or an error where no chunk could be verified
// against it.
func RecordFromWire(w *wire.Stripe) (*Record, error) {
	if w.GetCipher() != 0 {
		return nil, &moraine.Error{Op: "stripe record", Ref: moraine.StripeID(w.Id).String(), Kind: moraine.NewerFormat,
			Err: fmt.Errorf("cipher %d is not known", w.Cipher)}
	}
	s := &Record{capability: w.GetCapability()}
	if err := wire.StripeFromWire(&s.Stripe, w); err != nil {
		return nil, &moraine.Error{Op: "stripe record", Ref: moraine.StripeID(w.GetId()).String(), Kind: moraine.Corrupt, Err: err}
	}
	return s, nil
}
