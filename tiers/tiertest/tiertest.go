// Package tiertest tests every implementation of tiers.Tier against the contract.
// It tests only what the contract says, not how a tier does it. Each tier tests
// crashes and its own faults itself.
//
// One path through it: a tier's own test calls Run with a function that opens an
// empty tier. Run puts chunks made by MakeChunk, and Chunk.Check reads them back.
package tiertest

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/bufpool"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/tiers"
)

// Cluster is the cluster of all chunks that this package makes.
var Cluster = moraine.UUID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}

// Opened is a tier under test.
type Opened struct {
	Tier tiers.Tier
	// Reopen closes the tier and opens it again over its stored state.
	Reopen func(t *testing.T) tiers.Tier
}

// Run runs the conformance suite. open makes an empty tier of Cluster with room for
// at least 64 MiB, and registers its own clean-up with t.
func Run(t *testing.T, open func(t *testing.T) Opened) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, o Opened)
	}{
		{"put, get, list", testPutGet},
		{"ranges", testRanges},
		{"sizes", testSizes},
		{"repeated put", testRepeatedPut},
		{"versions", testVersions},
		{"refused puts", testRefusedPuts},
		{"delete", testDelete},
		{"delete below", testDeleteBelow},
		{"delete many", testDeleteMany},
		{"list pages", testListPages},
		{"usage", testUsage},
		{"reopen", testReopen},
		{"concurrent", testConcurrent},
		{"closed", testClosed},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open(t)) })
	}
}

// Chunk is the chunk of a put.
type Chunk struct {
	Header tiers.Header
	Data   []byte // aligned
	Sums   []uint32
}

// MakeChunk makes length bytes that depend only on seed, with their header. The
// buffer is returned when the test ends.
func MakeChunk(t testing.TB, id moraine.ChunkID, version moraine.LayoutVersion, length int, seed uint64) Chunk {
	pool := bufpool.New(bufpool.Config{})
	b := pool.TryGet(length)
	require.NotNil(t, b)
	t.Cleanup(func() {
		b.Release()
		pool.Close()
	})
	data := b.Bytes()
	Fill(data, seed)
	return ChunkOf(id, version, data)
}

// Fill fills p with bytes that depend only on seed.
func Fill(p []byte, seed uint64) {
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	_, _ = rand.NewChaCha8(key).Read(p)
}

// ChunkOf makes the header and checksums of data, which must be aligned.
func ChunkOf(id moraine.ChunkID, version moraine.LayoutVersion, data []byte) Chunk {
	return Chunk{
		Header: tiers.Header{ID: id, Version: version, Tenant: 7, Cluster: Cluster, Incarnation: 3,
			Length: int64(len(data)), CRC: crc.Sum(data), Cipher: 1, KeyID: 99},
		Data: data,
		Sums: crc.Blocks(nil, data),
	}
}

// Put puts c.
func (c Chunk) Put(t testing.TB, tier tiers.Tier) error {
	return tier.Put(t.Context(), c.Header, c.Data, c.Sums)
}

// Check verifies that tier holds exactly c.
func (c Chunk) Check(t testing.TB, tier tiers.Tier) {
	t.Helper()
	got := make([]byte, len(c.Data))
	h, err := tier.Get(t.Context(), c.Header.ID, 0, got)
	require.NoError(t, err)
	require.Equal(t, c.Header, h)
	require.Equal(t, crc.Sum(c.Data), crc.Sum(got), "bytes of %s", c.Header.ID)
}

func id(stripe, index int) moraine.ChunkID {
	return moraine.ChunkID{Stripe: moraine.StripeID(stripe), Index: uint8(index)}
}

// all returns every header of a tier.
func all(t testing.TB, tier tiers.Tier) []tiers.Header {
	t.Helper()
	headers, err := tier.List(t.Context(), moraine.ChunkID{}, 1<<20)
	require.NoError(t, err)
	return headers
}

func requireMissing(t testing.TB, tier tiers.Tier, id moraine.ChunkID) {
	t.Helper()
	_, err := tier.Get(t.Context(), id, 0, nil)
	require.ErrorIs(t, err, moraine.NotFound)
}
