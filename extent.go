package moraine

// Extent maps a range of a file to bytes of a stripe, of an object, or of a record of the
// metadata. A range of a file without an extent is a hole and reads as zeros.
type Extent struct {
	// Offset and Length are the range of the file, in bytes.
	Offset, Length int64
	// Stripe has the bytes, from StripeOffset of its data on. It is 0 if Object or Inline has
	// them, from that offset of the object or the record on.
	Stripe       StripeID
	StripeOffset int64
	Object       ObjectID
	Inline       InlineID
}

// End returns the first offset past the extent.
func (e Extent) End() int64 { return e.Offset + e.Length }

// ChunkState is the part of a stripe record about one chunk.
type ChunkState struct {
	Device DeviceID
	// CRC is the CRC32C of all stored bytes of the chunk.
	CRC uint32
	// Level is NVMe once synced, Memory while the copy is only in RAM.
	Level Level
	// Epoch is the boot epoch under which a Memory copy counts.
	Epoch Epoch
}

// Stripe is the record of a stripe. Every chunk that claims to belong to the stripe is verified
// against it.
type Stripe struct {
	ID      StripeID
	Scheme  Scheme
	Version LayoutVersion
	// Tenant owns the bytes.
	Tenant Tenant
	// Length is how many bytes of a file the stripe has, without padding.
	Length int64
	// LiveBytes is an upper bound of how many of them extents still refer to.
	LiveBytes int64
	// RefCount counts the extent tables that refer to the stripe.
	RefCount uint32
	// Origin is the file that the stripe was made for: all bytes of the stripe belong to it. For
	// a stripe of several files, it is the nearest directory above all of them.
	Origin InodeID
	// Cipher and KeyID are 0 until chunks are encrypted.
	Cipher uint8
	KeyID  uint32
	// MemoryAt numbers the commit of a stripe with chunks in memory, in order; 0: none was in memory
	// alone.
	MemoryAt uint64
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
