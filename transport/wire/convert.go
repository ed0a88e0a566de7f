package wire

import (
	"fmt"

	"github.com/morainefs/moraine"
)

// SchemeToWire returns a scheme as it travels; nil for the zero scheme, which leaves the
// choice to the service.
func SchemeToWire(s moraine.Scheme) *Scheme {
	if s.K == 0 {
		return nil
	}
	return &Scheme{K: uint32(s.K), M: uint32(s.M)}
}

// SchemeFromWire returns the zero scheme, which is not valid, for what is none.
func SchemeFromWire(w *Scheme) moraine.Scheme {
	k, m := w.GetK(), w.GetM()
	if k == 0 || k > moraine.MaxChunks || m > moraine.MaxChunks || k+m > moraine.MaxChunks {
		return moraine.Scheme{}
	}
	return moraine.Scheme{K: uint8(k), M: uint8(m)}
}

// StripeToWire returns a stripe's record as it travels. Its origin stays behind: it may be
// outside the scope of the reader.
func StripeToWire(s *moraine.Stripe) *Stripe {
	w := &Stripe{
		Id: uint64(s.ID), Scheme: SchemeToWire(s.Scheme), Version: uint32(s.Version), Tenant: uint32(s.Tenant),
		Length: uint64(s.Length), LiveBytes: uint64(s.LiveBytes), RefCount: s.RefCount,
		Cipher: uint32(s.Cipher), KeyId: s.KeyID, Chunks: make([]*ChunkState, len(s.Chunks)),
	}
	for i, c := range s.Chunks {
		w.Chunks[i] = &ChunkState{Device: uint32(c.Device), Crc: c.CRC, Level: uint32(c.Level), Epoch: uint64(c.Epoch)}
	}
	return w
}

// StripeFromWire fills s, which is zero, with the record that w holds. It fails where w is
// none: its scheme, its length and the number of its chunks must fit each other. The error
// says only that; its kind is the caller's to tell.
func StripeFromWire(s *moraine.Stripe, w *Stripe) error {
	scheme := SchemeFromWire(w.GetScheme())
	switch {
	case scheme.K == 0:
		return fmt.Errorf("no scheme: k=%d m=%d", w.GetScheme().GetK(), w.GetScheme().GetM())
	case w.GetLength() == 0 || w.GetLength() > uint64(scheme.K)*moraine.MaxChunkSize:
		return fmt.Errorf("a length of %d bytes; %s holds 1 to %d", w.GetLength(), scheme, uint64(scheme.K)*moraine.MaxChunkSize)
	case len(w.GetChunks()) != scheme.Chunks():
		return fmt.Errorf("%d chunks, %s has %d", len(w.GetChunks()), scheme, scheme.Chunks())
	case w.GetCipher() > 255:
		return fmt.Errorf("cipher %d", w.GetCipher())
	}
	*s = moraine.Stripe{ID: moraine.StripeID(w.GetId()), Scheme: scheme, Version: moraine.LayoutVersion(w.GetVersion()),
		Tenant: moraine.Tenant(w.GetTenant()), Length: int64(w.GetLength()), LiveBytes: int64(w.GetLiveBytes()),
		RefCount: w.GetRefCount(), Cipher: uint8(w.GetCipher()), KeyID: w.GetKeyId(), Chunks: make([]moraine.ChunkState, scheme.Chunks())}
	for i, c := range w.GetChunks() {
		s.Chunks[i] = moraine.ChunkState{Device: moraine.DeviceID(c.GetDevice()), CRC: c.GetCrc(),
			Level: moraine.Level(min(c.GetLevel(), 255)), Epoch: moraine.Epoch(c.GetEpoch())}
	}
	return nil
}

// ErrorToWire returns err as it travels, with texts of most bytes each at most. e is the
// *moraine.Error that it is or wraps, and whose parts it is sent in; nil where there is none.
func ErrorToWire(err error, e *moraine.Error, most int) *Error {
	w := &Error{Kind: uint32(moraine.KindOf(err))}
	switch {
	case e == nil:
		w.Text = Text(err.Error(), most)
	default:
		w.Op, w.Ref = e.Op, Text(e.Ref, most)
		if e.Err != nil {
			w.Text = Text(e.Err.Error(), most)
		}
	}
	return w
}
