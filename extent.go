package moraine

// Extent maps a range of a file to bytes of a stripe, or of an object. A range of
// a file that no extent covers is a hole and reads as zeros.
type Extent struct {
	// Offset and Length are the range of the file, in bytes.
	Offset, Length int64
	// Stripe holds the bytes, from StripeOffset of its data on; 0 where Object
	// does, from that offset of the object on.
	Stripe       StripeID
	StripeOffset int64
	Object       ObjectID
}

// End returns the first offset past the extent.
func (e Extent) End() int64 { return e.Offset + e.Length }

// ChunkState is what one chunk of a stripe record knows of its copy.
type ChunkState struct {
	Device DeviceID
	// CRC is the CRC32C of all stored bytes of the chunk.
	CRC uint32
	// Level is NVMe once synced, Memory while the copy is only in RAM.
	Level Level
	// Epoch is the boot epoch that a Memory copy counts under.
	Epoch Epoch
}

// Stripe is the record of a stripe: what every chunk that claims to belong to
// it is held against.
type Stripe struct {
	ID      StripeID
	Scheme  Scheme
	Version LayoutVersion
	// Tenant owns the bytes.
	Tenant Tenant
	// Length is how many bytes of a file the stripe holds.
	Length int64
	// LiveBytes is an upper bound of how many of them an extent still names.
	LiveBytes int64
	// RefCount counts the extent tables that refer to the stripe.
	RefCount uint32
	// Origin is the file that the stripe was made for: all bytes of the stripe are its. Where
	// it was made for several, it is the nearest directory above all of them.
	Origin InodeID
	// Cipher and KeyID are 0 until chunks are encrypted.
	Cipher uint8
	KeyID  uint32
	// Chunks has Scheme.Chunks() elements, by index.
	Chunks []ChunkState
}

// Layout returns where the stripe's chunks are.
func (s *Stripe) Layout() Layout {
	d := make([]DeviceID, len(s.Chunks))
	for i := range s.Chunks {
		d[i] = s.Chunks[i].Device
	}
	return Layout{Scheme: s.Scheme, Version: s.Version, Devices: d}
}
