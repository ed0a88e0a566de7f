package record

import (
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
func (s *Cluster) Encode() []byte { return s.fields(encoder(32)).B }

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (s *Cluster) Decode(b []byte) error { return s.fields(decoder(b)).End("cluster") }

func (s *Cluster) fields(c *codec) *codec {
	c.version(clusterVersion)
	c.array(s.Uuid[:])
	uvarint(c, &s.Incarnation)
	uvarint(c, &s.FeatureLevel)
	return c
}

const signingKeyVersion = 1

// EncodeSigningKey returns the stored value of a signing key.
func EncodeSigningKey(key *wire.SigningKey) []byte { return signingKeyFields(encoder(128), key).B }

// DecodeSigningKey decodes a signing key; id comes from its key.
func DecodeSigningKey(id uint64, b []byte) (*wire.SigningKey, error) {
	key := &wire.SigningKey{Id: id}
	return key, signingKeyFields(decoder(b), key).End("signing key")
}

func signingKeyFields(c *codec, key *wire.SigningKey) *codec {
	c.version(signingKeyVersion)
	c.bytes(&key.PublicKey)
	c.bytes(&key.Sealed)
	return c
}

const memberVersion = 1

// EncodeMember returns the stored value of a metadata server's directory.
func EncodeMember(dir moraine.UUID) []byte { return memberFields(encoder(17), &dir).B }

// DecodeMember decodes the directory of a metadata server. known is always true.
func DecodeMember(b []byte) (dir moraine.UUID, known bool, err error) {
	err = memberFields(decoder(b), &dir).End("member")
	return dir, true, err
}

func memberFields(c *codec, dir *moraine.UUID) *codec {
	c.version(memberVersion)
	c.array(dir[:])
	return c
}

// The routing says which partition has what. Its epoch grows with every change. When a mutation is
// applied, a different present epoch refuses it, because the epoch may have grown since the
// proposal. Today there is one partition, and a new epoch only makes clients ask for the routing
// again.

const routingVersion = 1

// EncodeRouting returns the stored value of the routing epoch.
func EncodeRouting(epoch uint64) []byte { return EncodeNumber(routingVersion, epoch) }

// DecodeRouting decodes the routing epoch.
func DecodeRouting(b []byte) (uint64, error) {
	return DecodeNumber[uint64](routingVersion, b, "routing")
}

const revocationVersion = 1

// Kinds of revocation.
const (
	RevokedKey    = 1
	RevokedSerial = 2
	RevokedNode   = 3
)

// EncodeRevocation returns the stored value of a revocation.
func EncodeRevocation(w *wire.Revocation) []byte { return revocationFields(encoder(64), w).B }

// DecodeRevocation decodes a row of revocations; prefix is the length of the table's key prefix.
func DecodeRevocation(prefix int, key, value []byte) (*wire.Revocation, error) {
	w := &wire.Revocation{}
	if err := revocationFields(decoder(value), w).End("revocation"); err != nil {
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

func revocationFields(c *codec, w *wire.Revocation) *codec {
	c.version(revocationVersion)
	c.string(&w.Node)
	c.string(&w.Role)
	fixed64(c, &w.IssuedUntil)
	fixed64(c, &w.At)
	return c
}

const TenantVersion = 1
