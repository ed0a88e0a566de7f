package record

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// Cluster is the identity of the cluster and what is true of all of it.
type Cluster struct {
	Uuid         moraine.UUID
	Incarnation  moraine.Incarnation
	FeatureLevel uint64
}

const clusterVersion = 1

func (c *Cluster) Encode() []byte {
	b := append([]byte{clusterVersion}, c.Uuid[:]...)
	b = PutUvarint(b, uint64(c.Incarnation))
	return PutUvarint(b, c.FeatureLevel)
}

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

func EncodeSigningKey(key *wire.SigningKey) []byte {
	return PutBytes(PutBytes([]byte{signingKeyVersion}, key.GetPublicKey()), key.GetSealed())
}

func DecodeSigningKey(id uint64, b []byte) (*wire.SigningKey, error) {
	d := Dec{B: b}
	d.Version(signingKeyVersion)
	key := &wire.SigningKey{Id: id, PublicKey: d.bytes(), Sealed: d.bytes()}
	return key, d.End("signing key")
}

const memberVersion = 1

func EncodeMember(dir moraine.UUID) []byte { return append([]byte{memberVersion}, dir[:]...) }

func DecodeMember(b []byte) (dir moraine.UUID, known bool, err error) {
	d := Dec{B: b}
	d.Version(memberVersion)
	for i := range dir {
		dir[i] = d.Byte()
	}
	return dir, true, d.End("member")
}

// Which partition has what is the routing, and its epoch is a number that rises
// with every change of it. A mutation that was routed by another epoch than the
// present one is refused when it is applied: between its proposal and then the
// epoch may have risen. There is one partition today, and what a rise does is that
// clients ask anew.

const routingVersion = 1

func EncodeRouting(epoch uint64) []byte { return PutUvarint([]byte{routingVersion}, epoch) }

func DecodeRouting(b []byte) (uint64, error) {
	d := Dec{B: b}
	d.Version(routingVersion)
	epoch := d.Uvarint()
	return epoch, d.End("routing")
}

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

const TenantVersion = 1
