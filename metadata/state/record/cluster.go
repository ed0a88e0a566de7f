package record

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// Cluster is the cluster's identity and settings.
type Cluster struct {
	Uuid         moraine.UUID
	Incarnation  moraine.Incarnation
	FeatureLevel uint64
}

const clusterVersion = 1

// Encode returns the stored value.
func (c *Cluster) Encode() []byte {
	b := append([]byte{clusterVersion}, c.Uuid[:]...)
	b = PutUvarint(b, uint64(c.Incarnation))
	return PutUvarint(b, c.FeatureLevel)
}

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (c *Cluster) Decode(b []byte) error {
	d := Dec{B: b}
	d.Version(clusterVersion)
	for i := range c.Uuid {
		c.Uuid[i] = d.Byte()
	}
	c.Incarnation = moraine.Incarnation(d.u8())
	c.FeatureLevel = d.Uvarint()
	return d.End("cluster")
}

const signingKeyVersion = 1

// EncodeSigningKey returns the stored value of a signing key.
func EncodeSigningKey(key *wire.SigningKey) []byte {
	return PutBytes(PutBytes([]byte{signingKeyVersion}, key.GetPublicKey()), key.GetSealed())
}

// DecodeSigningKey decodes a signing key; id comes from its key.
func DecodeSigningKey(id uint64, b []byte) (*wire.SigningKey, error) {
	d := Dec{B: b}
	d.Version(signingKeyVersion)
	key := &wire.SigningKey{Id: id, PublicKey: d.bytes(), Sealed: d.bytes()}
	return key, d.End("signing key")
}

const memberVersion = 1

// EncodeMember returns the stored value of a metadata server's directory.
func EncodeMember(dir moraine.UUID) []byte { return append([]byte{memberVersion}, dir[:]...) }

// DecodeMember decodes the directory of a metadata server. known is always true.
func DecodeMember(b []byte) (dir moraine.UUID, known bool, err error) {
	d := Dec{B: b}
	d.Version(memberVersion)
	for i := range dir {
		dir[i] = d.Byte()
	}
	return dir, true, d.End("member")
}

// The routing says which partition has what. Its epoch grows with every change. When a mutation is
// applied, a different present epoch refuses it, because the epoch may have grown since the
// proposal. Today there is one partition, and a new epoch only makes clients ask for the routing
// again.

const routingVersion = 1

// EncodeRouting returns the stored value of the routing epoch.
func EncodeRouting(epoch uint64) []byte { return PutUvarint([]byte{routingVersion}, epoch) }

// DecodeRouting decodes the routing epoch.
func DecodeRouting(b []byte) (uint64, error) {
	d := Dec{B: b}
	d.Version(routingVersion)
	epoch := d.Uvarint()
	return epoch, d.End("routing")
}

const revocationVersion = 1

// Kinds of revocation.
const (
	RevokedKey    = 1
	RevokedSerial = 2
	RevokedNode   = 3
)

// EncodeRevocation returns the stored value of a revocation.
func EncodeRevocation(w *wire.Revocation) []byte {
	b := PutString([]byte{revocationVersion}, w.GetNode())
	b = PutString(b, w.GetRole())
	b = binary.LittleEndian.AppendUint64(b, uint64(w.GetIssuedUntil()))
	return binary.LittleEndian.AppendUint64(b, uint64(w.GetAt()))
}

// DecodeRevocation decodes a row of revocations; prefix is the length of the table's key prefix.
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

const TenantVersion = 1
