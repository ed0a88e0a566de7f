package record

import (
	"encoding/binary"

	"github.com/morainefs/moraine/transport/wire"
)

const revocationVersion = 1

// What a revocation names.
const (
	RevokedKey    = 1
	RevokedSerial = 2
	RevokedNode   = 3
)

func EncodeRevocation(w *wire.Revocation) []byte {
	b := PutString([]byte{revocationVersion}, w.GetNode())
	b = PutString(b, w.GetRole())
	b = binary.LittleEndian.AppendUint64(b, uint64(w.GetIssuedUntil()))
	return binary.LittleEndian.AppendUint64(b, uint64(w.GetAt()))
}

// DecodeRevocation reads a pair of the table, whose key has a prefix of the given
// length.
func DecodeRevocation(prefix int, key, value []byte) (*wire.Revocation, error) {
	d := Dec{B: value}
	d.Version(revocationVersion)
	w := &wire.Revocation{Node: d.string(), Role: d.string()}
	w.IssuedUntil, w.At = int64(d.Fixed64()), int64(d.Fixed64())
	if err := d.End("revocation"); err != nil {
		return nil, err
	}
	switch kind, rest := key[prefix], key[prefix+1:]; kind {
	case RevokedKey:
		w.Key = append([]byte(nil), rest...)
	case RevokedSerial:
		w.Serial = string(rest)
	}
	return w, nil
}
