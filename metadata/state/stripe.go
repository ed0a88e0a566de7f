package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// stripe returns a stripe's record; nil where there is none.
func (v *view) stripe(id moraine.StripeID) (*moraine.Stripe, error) {
	b, ok, err := v.r.Get(v.k.stripe(id))
	if err != nil || !ok {
		return nil, err
	}
	return record.DecodeStripe(id, b)
}

// insertStripe writes a new stripe and its entries in the index of devices.
func (t *tx) insertStripe(s *moraine.Stripe) {
	t.insert(t.k.stripe(s.ID), record.EncodeStripe(s))
	presence := record.EncodePresence(t.index) // one value for all: nobody changes it
	for i, c := range s.Chunks {
		t.insert(t.k.deviceChunk(c.Device, moraine.ChunkID{Stripe: s.ID, Index: uint8(i)}), presence)
	}
	t.count[record.CStripes]++
}

// putStripe writes a changed stripe, and keeps the index of devices in step.
// old holds the devices that the index has.
func (t *tx) putStripe(old []moraine.DeviceID, s *moraine.Stripe) {
	for i, c := range s.Chunks {
		if old[i] == c.Device {
			continue
		}
		id := moraine.ChunkID{Stripe: s.ID, Index: uint8(i)}
		t.del(t.k.deviceChunk(old[i], id))
		t.put(t.k.deviceChunk(c.Device, id), record.EncodePresence(t.index))
	}
	t.put(t.k.stripe(s.ID), record.EncodeStripe(s))
}

// newStripe checks a new stripe that a client wants to commit and returns
// its first record, of tenant, without references and origin.
func newStripe(w *wire.Stripe, tenant moraine.Tenant) (*moraine.Stripe, error) {
	bad := func(format string, args ...any) (*moraine.Stripe, error) {
		return nil, fail(moraine.InvalidArgument, "commit", moraine.StripeID(w.GetId()).String(), format, args...)
	}
	s := &moraine.Stripe{}
	if err := wire.StripeFromWire(s, w); err != nil {
		return bad("%v", err)
	}
	if s.Version > 1 {
		return bad("layout version %d", s.Version)
	}
	s.Version, s.Tenant, s.LiveBytes, s.RefCount = 1, tenant, 0, 0
	for i := range s.Chunks {
		c := &s.Chunks[i]
		if c.Level != moraine.Memory && c.Level != moraine.NVMe {
			return bad("chunk %d is at level %d; memory or nvme can be committed", i, w.Chunks[i].GetLevel())
		}
		if c.Level != moraine.Memory {
			c.Epoch = 0
		}
	}
	return s, nil
}

// sameChunks reports whether have is the record that a commit of want left: a
// repair may have moved its chunks since.
func sameChunks(have, want *moraine.Stripe) bool {
	if have.Scheme != want.Scheme || have.Length != want.Length || have.Cipher != want.Cipher || have.KeyID != want.KeyID {
		return false
	}
	for i := range have.Chunks {
		if have.Chunks[i].CRC != want.Chunks[i].CRC {
			return false
		}
	}
	return true
}
