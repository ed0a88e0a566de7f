package capability_test

import (
	"crypto/ed25519"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/capability"
	"github.com/morainefs/moraine/transport/wire"
)

var signer = ed25519.NewKeyFromSeed([]byte(strings.Repeat("k", ed25519.SeedSize)))

// keys knows signer as key 7.
func keys(id uint64) ed25519.PublicKey {
	if id != 7 {
		return nil
	}
	return signer.Public().(ed25519.PublicKey)
}

func claims() *wire.CapabilityClaims {
	cluster := moraine.UUID{1, 2, 3}
	return &wire.CapabilityClaims{Cluster: cluster[:], Key: 7, Incarnation: 2, Expires: 1000, Session: 42,
		Stripes: []*wire.StripeRange{{First: 10, Count: 5}, {First: 20, Count: 1}}, Objects: []uint64{9}}
}

// A capability that an earlier build signed is verified by this one.
func TestGoldenCapability(t *testing.T) {
	text, err := os.ReadFile("testdata/capability.hex")
	require.NoError(t, err)
	golden, err := hex.DecodeString(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	got, err := capability.Verify(golden, keys)
	require.NoError(t, err)
	require.True(t, proto.Equal(claims(), got), "%v", got)
}

// No single flipped bit of a capability passes.
func TestFlippedBitsOfACapabilityAreRefused(t *testing.T) {
	b, err := capability.Sign(signer, claims())
	require.NoError(t, err)
	for bit := range 8 * len(b) {
		b[bit/8] ^= 1 << (bit % 8)
		_, err := capability.Verify(b, keys)
		require.Error(t, err, "bit %d", bit)
		b[bit/8] ^= 1 << (bit % 8)
	}
	_, err = capability.Verify(b, keys)
	require.NoError(t, err)
}

// A capability is of one cluster, term, incarnation and holder.
func TestWhomACapabilityServes(t *testing.T) {
	cluster := moraine.UUID{1, 2, 3}
	holder := &transport.Peer{Role: transport.RoleClient, Node: "c", Token: &wire.TokenClaims{Session: 42}}
	require.NoError(t, capability.Holds(claims(), holder, cluster, 2, 999))
	for name, err := range map[string]error{
		"another cluster":     capability.Holds(claims(), holder, moraine.UUID{9}, 2, 999),
		"a later incarnation": capability.Holds(claims(), holder, cluster, 3, 999),
		"its term has ended":  capability.Holds(claims(), holder, cluster, 2, 1000),
		"another session":     capability.Holds(claims(), &transport.Peer{Token: &wire.TokenClaims{Session: 43}}, cluster, 2, 999),
		"a server's node":     capability.Holds(claims(), &transport.Peer{Role: transport.RoleChunkserver, Node: "c"}, cluster, 2, 999),
	} {
		require.ErrorIs(t, err, moraine.PermissionDenied, name)
	}
}

// A capability covers its ranges of stripes, and no number beside them.
func TestWhatACapabilityCovers(t *testing.T) {
	for stripe, covered := range map[uint64]bool{0: false, 9: false, 10: true, 14: true, 15: false, 19: false, 20: true, 21: false} {
		require.Equal(t, covered, capability.CoversStripe(claims(), stripe), "stripe %d", stripe)
	}
	require.True(t, capability.CoversObject(claims(), 9))
	require.False(t, capability.CoversObject(claims(), 8))
}

// FuzzVerify has no bytes crash a chunkserver, nor pass that do not say what was signed.
func FuzzVerify(f *testing.F) {
	b, err := capability.Sign(signer, claims())
	require.NoError(f, err)
	f.Add(b)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, err := capability.Verify(b, keys); err == nil {
			require.True(t, proto.Equal(claims(), got), "%v", got)
		}
	})
}
