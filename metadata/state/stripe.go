package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

const stripeVersion = 1

func encodeStripe(s *moraine.Stripe) []byte {
	b := make([]byte, 0, 40+12*len(s.Chunks))
	b = append(b, stripeVersion, s.Scheme.K, s.Scheme.M)
	b = putUvarint(b, uint64(s.Version))
	b = putUvarint(b, uint64(s.Tenant))
	b = putUvarint(b, uint64(s.Length))
	b = putUvarint(b, uint64(s.LiveBytes))
	b = putUvarint(b, uint64(s.RefCount))
	b = putFixed64(b, uint64(s.Origin))
	b = append(b, s.Cipher)
	b = putUvarint(b, uint64(s.KeyID))
	for i := range s.Chunks {
		c := &s.Chunks[i]
		b = putUvarint(b, uint64(c.Device))
		b = putFixed32(b, c.CRC)
		b = append(b, byte(c.Level))
		b = putUvarint(b, uint64(c.Epoch))
	}
	return b
}

func decodeStripe(id moraine.StripeID, b []byte) (*moraine.Stripe, error) {
	d := dec{b: b}
	d.version(stripeVersion)
	s := &moraine.Stripe{ID: id}
	s.Scheme = moraine.Scheme{K: d.byte(), M: d.byte()}
	s.Version = moraine.LayoutVersion(d.u32())
	s.Tenant = moraine.Tenant(d.u32())
	s.Length = int64(d.uvarint())
	s.LiveBytes = int64(d.uvarint())
	s.RefCount = d.u32()
	s.Origin = moraine.InodeID(d.fixed64())
	s.Cipher = d.byte()
	s.KeyID = d.u32()
	n := min(s.Scheme.Chunks(), len(d.b))
	s.Chunks = make([]moraine.ChunkState, n)
	for i := range s.Chunks {
		c := &s.Chunks[i]
		c.Device = moraine.DeviceID(d.u32())
		c.CRC = d.fixed32()
		c.Level = moraine.Level(d.byte())
		c.Epoch = moraine.Epoch(d.uvarint())
	}
	if err := d.end("stripe"); err != nil {
		return nil, err
	}
	if n != s.Scheme.Chunks() {
		return nil, &moraine.Error{Op: "decode stripe", Ref: id.String(), Kind: moraine.Corrupt, Err: errShort}
	}
	return s, nil
}

// stripe returns a stripe's record; nil where there is none.
func (v *view) stripe(id moraine.StripeID) (*moraine.Stripe, error) {
	b, ok, err := v.r.Get(v.k.stripe(id))
	if err != nil || !ok {
		return nil, err
	}
	return decodeStripe(id, b)
}

// insertStripe writes a new stripe and its entries in the index of devices.
func (t *tx) insertStripe(s *moraine.Stripe) {
	t.insert(t.k.stripe(s.ID), encodeStripe(s))
	presence := t.presence() // one value for all: nobody changes it
	for i, c := range s.Chunks {
		t.insert(t.k.deviceChunk(c.Device, moraine.ChunkID{Stripe: s.ID, Index: uint8(i)}), presence)
	}
	t.count[cStripes]++
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
		t.put(t.k.deviceChunk(c.Device, id), t.presence())
	}
	t.put(t.k.stripe(s.ID), encodeStripe(s))
}

// stripeToWire returns the record as it travels. Its origin stays here: it may be outside
// the scope of who reads it.
func stripeToWire(s *moraine.Stripe) *wire.Stripe {
	w := &wire.Stripe{
		Id: uint64(s.ID), Scheme: schemeToWire(s.Scheme), Version: uint32(s.Version), Tenant: uint32(s.Tenant),
		Length: uint64(s.Length), LiveBytes: uint64(s.LiveBytes), RefCount: s.RefCount,
		Cipher: uint32(s.Cipher), KeyId: s.KeyID, Chunks: make([]*wire.ChunkState, len(s.Chunks)),
	}
	for i, c := range s.Chunks {
		w.Chunks[i] = &wire.ChunkState{Device: uint32(c.Device), Crc: c.CRC, Level: uint32(c.Level), Epoch: uint64(c.Epoch)}
	}
	return w
}

func schemeToWire(s moraine.Scheme) *wire.Scheme {
	return &wire.Scheme{K: uint32(s.K), M: uint32(s.M)}
}

// stripeFromWire checks a new stripe that a client wants to commit and returns
// its first record, of tenant, without references and origin.
func stripeFromWire(w *wire.Stripe, tenant moraine.Tenant) (*moraine.Stripe, error) {
	id := moraine.StripeID(w.GetId())
	bad := func(format string, args ...any) (*moraine.Stripe, error) {
		return nil, fail(moraine.InvalidArgument, "commit", id.String(), format, args...)
	}
	k, n := w.GetScheme().GetK(), w.GetScheme().GetM()
	if k == 0 || k > moraine.MaxChunks || n > moraine.MaxChunks || k+n > moraine.MaxChunks {
		return bad("no scheme: k=%d m=%d", k, n)
	}
	scheme := moraine.Scheme{K: uint8(k), M: uint8(n)}
	if w.GetLength() == 0 || w.GetLength() > uint64(scheme.K)*moraine.MaxChunkSize {
		return bad("a length of %d bytes; %s holds 1 to %d", w.GetLength(), scheme, uint64(scheme.K)*moraine.MaxChunkSize)
	}
	if len(w.GetChunks()) != scheme.Chunks() {
		return bad("%d chunks, %s has %d", len(w.GetChunks()), scheme, scheme.Chunks())
	}
	if w.GetCipher() > 255 || (w.GetVersion() != 0 && w.GetVersion() != 1) {
		return bad("cipher %d, layout version %d", w.GetCipher(), w.GetVersion())
	}
	s := &moraine.Stripe{ID: id, Scheme: scheme, Version: 1, Tenant: tenant, Length: int64(w.GetLength()),
		Cipher: uint8(w.GetCipher()), KeyID: w.GetKeyId(), Chunks: make([]moraine.ChunkState, scheme.Chunks())}
	for i, c := range w.GetChunks() {
		level := moraine.Level(min(c.GetLevel(), 255))
		if level != moraine.Memory && level != moraine.NVMe {
			return bad("chunk %d is at level %d; memory or nvme can be committed", i, c.GetLevel())
		}
		s.Chunks[i] = moraine.ChunkState{Device: moraine.DeviceID(c.GetDevice()), CRC: c.GetCrc(), Level: level}
		if level == moraine.Memory {
			s.Chunks[i].Epoch = moraine.Epoch(c.GetEpoch())
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
