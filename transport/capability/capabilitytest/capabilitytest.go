// Package capabilitytest signs capabilities for tests that call chunkservers
// themselves. A fake metadata service publishes Key, and the test calls Write or
// Repair, which sign with it.
package capabilitytest

import (
	"cmp"
	"crypto/ed25519"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/capability"
	"github.com/morainefs/moraine/transport/wire"
)

// keyID is the number of the key.
const keyID = 77

var private = ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))

// Key is the public key for the signatures of this package, in the form in which
// heartbeats carry it.
func Key() *wire.SigningKey {
	return &wire.SigningKey{Id: keyID, PublicKey: private.Public().(ed25519.PublicKey)}
}

// Sign signs claims as a metadata service of the cluster would, for an hour, any
// incarnation, scheme and length where they do not say.
func Sign(cluster moraine.UUID, claims *wire.CapabilityClaims) []byte {
	if len(claims.Cluster) == 0 {
		claims.Cluster = cluster[:]
	}
	claims.Key = keyID
	if claims.Incarnation == 0 {
		claims.Incarnation = 1 << 20 // no superseded metadata
	}
	if claims.Expires == 0 {
		claims.Expires = time.Now().Add(time.Hour).Unix()
	}
	if claims.Right == wire.CapabilityRight_CAPABILITY_RIGHT_WRITE {
		claims.Chunks = cmp.Or(claims.Chunks, moraine.MaxChunks)
		claims.Length = cmp.Or(claims.Length, moraine.MaxChunkSize)
	}
	b, err := capability.Sign(private, claims)
	if err != nil {
		panic(err)
	}
	return b
}

// Write is the capability to write count stripes from first on.
func Write(cluster moraine.UUID, session, first, count uint64) []byte {
	return Sign(cluster, &wire.CapabilityClaims{Session: session, Right: wire.CapabilityRight_CAPABILITY_RIGHT_WRITE,
		Stripes: []*wire.StripeRange{{First: first, Count: count}}})
}

// Repair is the capability of a node to carry out intents.
func Repair(cluster moraine.UUID, node string, intents ...*wire.Intent) []byte {
	return Sign(cluster, &wire.CapabilityClaims{Node: node, Right: wire.CapabilityRight_CAPABILITY_RIGHT_REPAIR, Intents: intents})
}
