package record

const xattrVersion = 1

func EncodeXattr(value []byte) []byte { return PutBytes([]byte{xattrVersion}, value) }

func DecodeXattr(b []byte) ([]byte, error) {
	d := Dec{B: b}
	d.Version(xattrVersion)
	v := d.bytes()
	return v, d.End("extended attribute")
}
