// Package capabilitytest mints capabilities for tests that speak with chunkservers
// themselves: a fake metadata service hands out Key, and signs with it.
package capabilitytest

import (
	"crypto/ed25519"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/capability"
	"github.com/morainefs/moraine/transport/wire"
)

// keyID is the number of the key.
const keyID = 77

var private = ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))

// Key is the public key that verifies what this package signs, as it comes with
// heartbeats.
func Key() *wire.SigningKey {
	return &wire.SigningKey{Id: keyID, PublicKey: private.Public().(ed25519.PublicKey)}
}

// Sign signs claims as a metadata service of the cluster would, for an hour, any
// incarnation and any scheme where they do not say.
func Sign(cluster moraine.UUID, claims *wire.CapabilityClaims) []byte {
	if len(claims.Cluster) == 0 {
		claims.Cluster = cluster[:]
	}
	claims.Key = keyID
	if claims.Incarnation == 0 {
		claims.Incarnation = 1 << 20 // of no metadata that is past
	}
	if claims.Expires == 0 {
		claims.Expires = time.Now().Add(time.Hour).Unix()
	}
	if claims.Right == wire.CapabilityRight_CAPABILITY_RIGHT_WRITE && claims.Chunks == 0 {
		claims.Chunks = moraine.MaxChunks
	}
	b, err := capability.Sign(private, claims)
	if err != nil {
		panic(err)
	}
	return b
}

// Write is the capability to write stripes from first on.
func Write(cluster moraine.UUID, session, first, count uint64) []byte {
	return Sign(cluster, &wire.CapabilityClaims{Session: session, Right: wire.CapabilityRight_CAPABILITY_RIGHT_WRITE,
		Stripes: []*wire.StripeRange{{First: first, Count: count}}})
}

// Repair is the capability of a node to fill intents.
func Repair(cluster moraine.UUID, node string, intents ...*wire.Intent) []byte {
	return Sign(cluster, &wire.CapabilityClaims{Node: node, Right: wire.CapabilityRight_CAPABILITY_RIGHT_REPAIR, Intents: intents})
}
