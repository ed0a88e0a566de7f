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

// Record is the record of a stripe, with what reads of its chunks need.
type Record struct {
	moraine.Stripe
	// capability is the permission from the service to read it; nil if the session's token is
	// enough. It ends with its page of extents.
	capability []byte
	// permit is the capability's term, and inode the file of its page of extents.
	permit permit
	inode  uint64
	// limited is whether the capability covers only some bytes of the stripe, because this
	// session may not read the others.
	limited bool
	// Grant is the grant of a stripe that this client has put and not committed yet.
	Grant *grant
}

// rebuildable reports whether lost or late chunks of the stripe can be rebuilt from others.
func (s *Record) rebuildable() bool {
	return s.Scheme.M > 0 && (!s.limited || s.Scheme.IsCopies())
}

// RecordFromWire returns a stripe's record, or an error if no chunk could be verified against
// it.
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
