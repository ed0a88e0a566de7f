package capability_test

import (
	"crypto/ed25519"
	"encoding/hex"
	"flag"
	"math"
	"os"
	"slices"
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
		Right: wire.CapabilityRight_CAPABILITY_RIGHT_READ, Inode: 5,
		Stripes: []*wire.StripeRange{{First: 10, Count: 5}, {First: 20, Count: 1}}, Objects: []*wire.ObjectRange{{Object: 9, Offset: 100, Length: 50}, {Object: 9, Offset: 200, Length: 50}},
		Parts: []*wire.ChunkPart{{Stripe: 30, Index: 1, Offset: 100, Length: 50}, {Stripe: 30, Index: 1, Offset: 200, Length: 50},
			{Stripe: 31, Copies: true, Offset: 0, Length: 10}, {Stripe: 31, Copies: true, Offset: 20, Length: 10}}}
}

// This build verifies a capability that an earlier build signed.
func TestGoldenCapability(t *testing.T) {
	for name, want := range everyRight() {
		file := "testdata/" + name + ".hex"
		if *updateGolden {
			b, err := capability.Sign(signer, want)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(file, []byte(hex.EncodeToString(b)+"\n"), 0o644))
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		golden, err := hex.DecodeString(strings.TrimSpace(string(text)))
		require.NoError(t, err)
		got, err := capability.Verify(golden, keys)
		require.NoError(t, err, name)
		require.True(t, proto.Equal(want, got), "%s: %v", name, got)
		again, err := capability.Sign(signer, got)
		require.NoError(t, err)
		require.Equal(t, golden, again, "%s has another encoding now", name)
	}
}

var updateGolden = flag.Bool("capability.update", false, "rewrite the golden files")

// everyRight returns claims of each right, with all fields that the right uses.
func everyRight() map[string]*wire.CapabilityClaims {
	write, repair := claims(), claims()
	write.Right = wire.CapabilityRight_CAPABILITY_RIGHT_WRITE
	write.Objects, write.Parts, write.Inode, write.Chunks, write.Length = nil, nil, 0, 6, 4<<20
	repair.Right, repair.Session, repair.Node = wire.CapabilityRight_CAPABILITY_RIGHT_REPAIR, 0, "n1"
	repair.Objects, repair.Parts, repair.Inode, repair.Stripes = nil, nil, 0, nil
	repair.Intents = []*wire.Intent{{Stripe: 10, Index: 1, Device: 4, Version: 2}, {Stripe: 11, Index: 5, Device: 6, Version: 3}}
	return map[string]*wire.CapabilityClaims{"capability": claims(), "capability-write": write, "capability-repair": repair}
}

// No single flipped bit of a capability passes.
func TestFlippedBitsOfACapabilityAreRefused(t *testing.T) {
	for name, c := range everyRight() {
		b, err := capability.Sign(signer, c)
		require.NoError(t, err)
		for bit := range 8 * len(b) {
			b[bit/8] ^= 1 << (bit % 8)
			_, err := capability.Verify(b, keys)
			require.Error(t, err, "%s: bit %d", name, bit)
			b[bit/8] ^= 1 << (bit % 8)
		}
		_, err = capability.Verify(b, keys)
		require.NoError(t, err)
	}
}

// A capability is valid for one cluster, term, incarnation and holder.
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

// A capability covers its ranges of stripes, and no number next to them.
func TestWhatACapabilityCovers(t *testing.T) {
	for stripe, covered := range map[uint64]bool{0: false, 9: false, 10: true, 14: true, 15: false, 19: false, 20: true, 21: false} {
		require.Equal(t, covered, capability.CoversStripe(claims(), stripe), "stripe %d", stripe)
	}
	for _, r := range []struct {
		stripe      uint64
		index       uint32
		off, length uint64
		covered     bool
	}{
		{10, 31, 0, 1 << 30, true}, // covers a whole stripe
		{30, 1, 100, 50, true}, {30, 1, 149, 1, true}, {30, 1, 200, 50, true}, {30, 1, 120, 0, true},
		{30, 1, 99, 1, false}, {30, 1, 100, 51, false}, {30, 1, 150, 1, false}, {30, 1, 140, 70, false}, {30, 1, 100, 150, false},
		{30, 0, 100, 50, false}, {30, 2, 100, 50, false}, {29, 1, 100, 50, false}, {32, 1, 0, 1, false},
		{30, 1, 100, math.MaxUint64, false}, {30, 1, math.MaxUint64, 1, false}, {30, 1, math.MaxUint64, 101, false}, {30, 1, 0, 0, false},
		{31, 0, 0, 10, true}, {31, 3, 2, 8, true}, {31, 3, 20, 10, true}, {31, 3, 10, 1, false}, {31, 3, 0, 11, false}, {31, 3, 5, 20, false},
	} {
		require.Equal(t, r.covered, capability.CoversRead(claims(), r.stripe, r.index, r.off, r.length), "%+v", r)
	}
	for stripe, some := range map[uint64]bool{10: true, 15: false, 29: false, 30: true, 31: true, 32: false} {
		require.Equal(t, some, capability.CoversPart(claims(), stripe), "stripe %d", stripe)
	}
	for chunk, some := range map[[2]uint64]bool{{10, 31}: true, {15, 0}: false, {30, 0}: false, {30, 1}: true, {30, 2}: false, {31, 0}: true, {31, 3}: true, {32, 1}: false} {
		require.Equal(t, some, capability.CoversSome(claims(), chunk[0], uint32(chunk[1])), "%v", chunk)
	}
	require.False(t, capability.CoversStripe(claims(), 30))
	for _, r := range []struct {
		object, off, length uint64
		covered             bool
	}{
		{9, 100, 50, true}, {9, 149, 1, true}, {9, 200, 50, true},
		{9, 99, 1, false}, {9, 100, 51, false}, {9, 150, 1, false}, {9, 140, 70, false}, {9, 100, 150, false}, {8, 100, 1, false}, {10, 100, 1, false},
		{9, 100, math.MaxUint64, false}, {9, math.MaxUint64, 2, false}, {9, math.MaxUint64, 101, false}, {0, 0, 0, false},
	} {
		require.Equal(t, r.covered, capability.CoversObject(claims(), r.object, r.off, r.length), "%+v", r)
	}
}

// raw signs claims that Sign refuses.
func raw(t *testing.T, c *wire.CapabilityClaims, extra ...byte) []byte {
	claims, err := proto.Marshal(c)
	require.NoError(t, err)
	claims = append(claims, extra...)
	b, err := proto.Marshal(&wire.Capability{Claims: claims, Signature: ed25519.Sign(signer, append([]byte("moraine capability\x00"), claims...))})
	require.NoError(t, err)
	return b
}

// Verify refuses meaningless claims, whoever signed them: ranges of stripes that
// are empty, overlap, touch, are unordered or exceed the largest number, and claims
// that do not fit the right.
func TestMalformedCapabilitiesAreRefused(t *testing.T) {
	_, err := capability.Verify(raw(t, claims()), keys)
	require.NoError(t, err)
	ranges := func(numbers ...uint64) func(c *wire.CapabilityClaims) {
		return func(c *wire.CapabilityClaims) {
			c.Stripes = nil
			for n := 0; n < len(numbers); n += 2 {
				c.Stripes = append(c.Stripes, &wire.StripeRange{First: numbers[n], Count: numbers[n+1]})
			}
		}
	}
	const most = math.MaxUint64
	const write, repair = wire.CapabilityRight_CAPABILITY_RIGHT_WRITE, wire.CapabilityRight_CAPABILITY_RIGHT_REPAIR
	writes := func(chunks uint32) func(c *wire.CapabilityClaims) {
		return func(c *wire.CapabilityClaims) {
			c.Right, c.Objects, c.Parts, c.Inode, c.Chunks, c.Length = write, nil, nil, 0, chunks, 4<<20
		}
	}
	intents := []*wire.Intent{{Stripe: 1, Index: 1, Device: 1, Version: 2}}
	many := make([]uint64, 0, 2*(capability.MaxRanges+1))
	for n := range uint64(capability.MaxRanges + 1) {
		many = append(many, 3*n+1, 1)
	}
	for name, change := range map[string]func(c *wire.CapabilityClaims){
		"overlap":                 ranges(10, 5, 14, 5),
		"the same twice":          ranges(10, 5, 10, 5),
		"one in another":          ranges(10, 50, 12, 5),
		"touch":                   ranges(10, 5, 15, 5),
		"go back":                 ranges(20, 1, 10, 5),
		"go back and overlap":     ranges(10, 5, 3, 20),
		"empty":                   ranges(10, 0),
		"number 0":                ranges(0, 5),
		"pass the largest number": ranges(10, most),
		"wrap around":             ranges(most, 2, 10, 5),
		"too many":                ranges(many...),
		"no right":                func(c *wire.CapabilityClaims) { c.Right = 0 },
		"an unknown right":        func(c *wire.CapabilityClaims) { c.Right = 9 },
		"nothing to read":         func(c *wire.CapabilityClaims) { c.Stripes, c.Objects, c.Parts = nil, nil, nil },
		"write of parts":          func(c *wire.CapabilityClaims) { parts := c.Parts; writes(3)(c); c.Parts = parts },
		"parts that overlap":      func(c *wire.CapabilityClaims) { c.Parts[1].Offset = 149 },
		"parts that touch":        func(c *wire.CapabilityClaims) { c.Parts[1].Offset = 150 },
		"parts out of order":      func(c *wire.CapabilityClaims) { slices.Reverse(c.Parts) },
		"an empty part":           func(c *wire.CapabilityClaims) { c.Parts[0].Length = 0 },
		"a part of no stripe":     func(c *wire.CapabilityClaims) { c.Parts = []*wire.ChunkPart{{Length: 1}} },
		"a part that wraps":       func(c *wire.CapabilityClaims) { c.Parts[1].Length = most },
		"objects that overlap":    func(c *wire.CapabilityClaims) { c.Objects[1].Offset = 149 },
		"objects that touch":      func(c *wire.CapabilityClaims) { c.Objects[1].Offset = 150 },
		"objects out of order":    func(c *wire.CapabilityClaims) { slices.Reverse(c.Objects) },
		"no bytes of an object":   func(c *wire.CapabilityClaims) { c.Objects[0].Length = 0 },
		"bytes of no object":      func(c *wire.CapabilityClaims) { c.Objects[0].Object = 0 },
		"an object that wraps":    func(c *wire.CapabilityClaims) { c.Objects[1].Length = most },
		"a part past a chunk":     func(c *wire.CapabilityClaims) { c.Parts[1].Length = moraine.MaxChunkSize },
		"a part of chunk 32":      func(c *wire.CapabilityClaims) { c.Parts[1].Index = moraine.MaxChunks },
		"a part of one copy":      func(c *wire.CapabilityClaims) { c.Parts[3].Index = 1 },
		"a part of both kinds":    func(c *wire.CapabilityClaims) { c.Parts[0].Copies, c.Parts[0].Index = true, 0 },
		"read with intents":       func(c *wire.CapabilityClaims) { c.Intents = intents },
		"read with chunks":        func(c *wire.CapabilityClaims) { c.Chunks = 3 },
		"write of no chunks":      writes(0),
		"write of no bytes":       func(c *wire.CapabilityClaims) { writes(3)(c); c.Length = 0 },
		"write of large chunks":   func(c *wire.CapabilityClaims) { writes(3)(c); c.Length = moraine.MaxChunkSize + 1 },
		"read with a length":      func(c *wire.CapabilityClaims) { c.Length = 1 },
		"write of many chunks":    writes(moraine.MaxChunks + 1),
		"write with objects":      func(c *wire.CapabilityClaims) { objects := c.Objects; writes(3)(c); c.Objects = objects },
		"repair of stripes": func(c *wire.CapabilityClaims) {
			c.Right, c.Objects, c.Parts, c.Inode, c.Intents = repair, nil, nil, 0, intents
		},
		"repair of nothing": func(c *wire.CapabilityClaims) {
			c.Right, c.Objects, c.Parts, c.Inode, c.Stripes = repair, nil, nil, 0, nil
		},
		"no holder":  func(c *wire.CapabilityClaims) { c.Session = 0 },
		"no cluster": func(c *wire.CapabilityClaims) { c.Cluster = nil },
	} {
		c := claims()
		change(c)
		_, err := capability.Verify(raw(t, c), keys)
		require.ErrorIs(t, err, moraine.PermissionDenied, name)
		_, err = capability.Sign(signer, c)
		require.ErrorIs(t, err, moraine.InvalidArgument, name)
	}
	c := claims()
	writes(3)(c)
	_, err = capability.Verify(raw(t, c), keys)
	require.NoError(t, err)
	ranges(1, most-1)(c)
	_, err = capability.Verify(raw(t, c), keys)
	require.NoError(t, err)
}

// One capability has one encoding. Otherwise a caller could make others of it,
// which a server would cache separately.
func TestACapabilityHasOneEncoding(t *testing.T) {
	b, err := capability.Sign(signer, claims())
	require.NoError(t, err)
	unknown := []byte{0xfa, 0x3e, 1, 'x'} // field 1007
	for name, b := range map[string][]byte{
		"an unknown field":           append(slices.Clone(b), unknown...),
		"an unknown field in claims": raw(t, claims(), unknown...),
		"a field twice":              append(slices.Clone(b), b...),
		"a field of claims twice":    raw(t, claims(), 0x18, 7), // key
		"a longer number":            raw(t, &wire.CapabilityClaims{}, append([]byte{0x18, 0x87, 0x80, 0x00}, encoded(t)...)...),
		"a short signature":          b[:len(b)-1],
		"nothing":                    nil,
	} {
		_, err := capability.Verify(b, keys)
		require.ErrorIs(t, err, moraine.PermissionDenied, name)
		_, err = capability.Parse(b)
		require.ErrorIs(t, err, moraine.PermissionDenied, name)
	}
}

// encoded are the claims, without their key.
func encoded(t *testing.T) []byte {
	c := claims()
	c.Key = 0
	b, err := proto.Marshal(c)
	require.NoError(t, err)
	return b
}

// Parts finds ranges of a stripe in its chunks, in any order, in the form of a
// capability.
func TestPartsOfChunks(t *testing.T) {
	const block = moraine.BlockSize
	s := &wire.Stripe{Id: 30, Scheme: &wire.Scheme{K: 2, M: 1}, Length: 2*block - 10} // chunks of a block
	got := capability.Parts(s, []*wire.Extent{{StripeOffset: block + 100, Length: 50}, {StripeOffset: block - 10, Length: 30},
		{StripeOffset: block - 20, Length: 10}, {StripeOffset: 5, Length: 1}, {StripeOffset: block + 110, Length: 5}})
	want := []*wire.ChunkPart{{Stripe: 30, Offset: 5, Length: 1}, {Stripe: 30, Offset: block - 20, Length: 20},
		{Stripe: 30, Index: 1, Offset: 0, Length: 20}, {Stripe: 30, Index: 1, Offset: 100, Length: 50}}
	require.Len(t, got, len(want))
	for n := range want {
		require.True(t, proto.Equal(want[n], got[n]), "%v", got[n])
	}
	s.Scheme = &wire.Scheme{K: 1, M: 2}
	got = capability.Parts(s, []*wire.Extent{{StripeOffset: block - 10, Length: 30}})
	require.Len(t, got, 1)
	require.True(t, proto.Equal(&wire.ChunkPart{Stripe: 30, Copies: true, Offset: block - 10, Length: 30}, got[0]), "%v", got)
	c := claims()
	c.Parts = got
	_, err := capability.Sign(signer, c)
	require.NoError(t, err)
}

// ObjectRanges finds the ranges of objects in extents, in any order, in the form of
// a capability.
func TestRangesOfObjects(t *testing.T) {
	got := capability.ObjectRanges([]*wire.Extent{{Object: 9, StripeOffset: 50, Length: 10}, {Stripe: 3, Length: 10}, {Object: 8, StripeOffset: 5, Length: 1},
		{Object: 9, StripeOffset: 0, Length: 50}, {Object: 9, StripeOffset: 70, Length: 10}, {Object: 9, StripeOffset: 72, Length: 2}})
	want := []*wire.ObjectRange{{Object: 8, Offset: 5, Length: 1}, {Object: 9, Length: 60}, {Object: 9, Offset: 70, Length: 10}}
	require.Len(t, got, len(want))
	for n := range want {
		require.True(t, proto.Equal(want[n], got[n]), "%v", got[n])
	}
	c := claims()
	c.Objects = got
	_, err := capability.Sign(signer, c)
	require.NoError(t, err)
}

// FuzzVerify: no bytes crash a chunkserver, and none pass that do not say what was
// signed.
func FuzzVerify(f *testing.F) {
	rights := everyRight()
	for _, c := range rights {
		b, err := capability.Sign(signer, c)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := capability.Verify(b, keys)
		if err != nil {
			return
		}
		for _, c := range rights {
			if proto.Equal(c, got) {
				return
			}
		}
		t.Errorf("claims that nobody signed: %v", got)
	})
}

// FuzzParse parses claims without a check of the signature: accepted claims have
// one encoding.
func FuzzParse(f *testing.F) {
	for _, c := range everyRight() {
		b, err := capability.Sign(signer, c)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := capability.Parse(b)
		if err != nil {
			return
		}
		again, err := capability.Sign(signer, got)
		require.NoError(t, err, "%v is well formed, and cannot be signed", got)
		require.Len(t, again, len(b))
	})
}
