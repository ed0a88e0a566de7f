package record

import (
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
