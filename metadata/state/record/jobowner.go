package record

const ownedVersion = 1

func EncodeOwned(n uint64) []byte { return PutUvarint([]byte{ownedVersion}, n) }

func DecodeOwned(b []byte) (uint64, error) {
	d := Dec{B: b}
	d.Version(ownedVersion)
	n := d.Uvarint()
	return n, d.End("jobs of a session")
}
