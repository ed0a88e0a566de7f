package record

// presence is the value of a chunk in the index of devices: the log index at
// which it came there.
func EncodePresence(index uint64) []byte {
	return PutUvarint(newValue(presenceVersion, 8), index)
}

const presenceVersion = 1

func DecodePresence(b []byte) (uint64, error) {
	d := Dec{B: b}
	d.Version(presenceVersion)
	at := d.Uvarint()
	return at, d.End("index of devices")
}
