package tiertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/tiers"
)

func testPutGet(t *testing.T, o Opened) {
	requireMissing(t, o.Tier, id(1, 0))
	require.Empty(t, all(t, o.Tier))
	a, b, c := MakeChunk(t, id(1, 0), 1, 100_000, 1), MakeChunk(t, id(1, 1), 1, 4096, 2), MakeChunk(t, id(300, 0), 4, 1, 3)
	for _, chunk := range []Chunk{c, b, a} {
		require.NoError(t, chunk.Put(t, o.Tier))
	}
	for _, chunk := range []Chunk{a, b, c} {
		chunk.Check(t, o.Tier)
	}
	require.Equal(t, []tiers.Header{a.Header, b.Header, c.Header}, all(t, o.Tier))
	h, err := o.Tier.Get(t.Context(), a.Header.ID, 0, nil)
	require.NoError(t, err)
	require.Equal(t, a.Header, h)
	require.NoError(t, o.Tier.Err())
}

func testRanges(t *testing.T, o Opened) {
	const length = 300_001
	c := MakeChunk(t, id(9, 2), 1, length, 1)
	require.NoError(t, c.Put(t, o.Tier))
	ranges := [][2]int{{0, 1}, {0, 4096}, {1, 4096}, {4095, 2}, {4096, 4096}, {200_000, 8192}, {204_800, 4096},
		{length - 1, 1}, {length, 0}, {299_008, length - 299_008}, {0, length}, {5, length - 10}}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		off := rng.IntN(length)
		ranges = append(ranges, [2]int{off, rng.IntN(length - off + 1)})
	}
	for _, r := range ranges {
		checkRange(t, o.Tier, c, r[0], r[1])
	}
	for _, r := range [][2]int64{{-1, 1}, {length, 1}, {length + 1, 0}, {1, length}} {
		_, err := o.Tier.Get(t.Context(), c.Header.ID, r[0], make([]byte, r[1]))
		require.ErrorIs(t, err, moraine.InvalidArgument, "%v", r)
	}
}

func checkRange(t *testing.T, tier tiers.Tier, c Chunk, off, n int) {
	t.Helper()
	want := c.Data[off : off+n]
	got := make([]byte, n)
	h, err := tier.Get(t.Context(), c.Header.ID, int64(off), got)
	require.NoError(t, err)
	require.Equal(t, c.Header, h)
	require.Equal(t, crc.Sum(want), crc.Sum(got), "%d bytes at %d", n, off)
	viewer, ok := tier.(tiers.Viewer)
	if !ok {
		return
	}
	v, err := viewer.View(t.Context(), c.Header.ID, int64(off), int64(n))
	require.NoError(t, err)
	defer v.Release()
	require.Equal(t, crc.Sum(want), crc.Sum(v.Data), "view of %d bytes at %d", n, off)
	require.Len(t, v.Data, n)
	require.Equal(t, crc.Sum(want), v.CRC, "checksum of the view of %d bytes at %d", n, off)
}

func testSizes(t *testing.T, o Opened) {
	for i, n := range []int{1, 4095, 4096, 4097, 8192, 1 << 20, 1<<20 + 1, 4 << 20, moraine.MaxChunkSize} {
		c := MakeChunk(t, id(i+1, 0), 1, n, uint64(i))
		require.NoError(t, c.Put(t, o.Tier), "%d bytes", n)
		c.Check(t, o.Tier)
	}
}

func testRepeatedPut(t *testing.T, o Opened) {
	c := MakeChunk(t, id(1, 0), 2, 10_000, 1)
	require.NoError(t, c.Put(t, o.Tier))
	require.NoError(t, c.Put(t, o.Tier))
	require.Len(t, all(t, o.Tier), 1)
	other := MakeChunk(t, id(1, 0), 2, 10_000, 2)
	require.ErrorIs(t, other.Put(t, o.Tier), moraine.Exists)
	c.Check(t, o.Tier)
	require.NoError(t, o.Tier.Delete(t.Context(), id(1, 0), 3))
	require.NoError(t, other.Put(t, o.Tier))
	other.Check(t, o.Tier)
}

func testVersions(t *testing.T, o Opened) {
	one, two := MakeChunk(t, id(1, 0), 1, 10_000, 1), MakeChunk(t, id(1, 0), 2, 20_000, 2)
	require.NoError(t, one.Put(t, o.Tier))
	require.NoError(t, two.Put(t, o.Tier))
	two.Check(t, o.Tier)
	require.ErrorIs(t, one.Put(t, o.Tier), moraine.Stale)
	two.Check(t, o.Tier)
	require.Equal(t, []tiers.Header{two.Header}, all(t, o.Tier))
}

func testRefusedPuts(t *testing.T, o Opened) {
	good := MakeChunk(t, id(1, 0), 1, 10_000, 1)
	for name, c := range map[string]struct {
		change func(c *Chunk)
		kind   moraine.Kind
	}{
		"length too small":   {func(c *Chunk) { c.Header.Length-- }, moraine.InvalidArgument},
		"no bytes":           {func(c *Chunk) { c.Header.Length, c.Data, c.Sums = 0, c.Data[:0], nil }, moraine.TooLarge},
		"a checksum too few": {func(c *Chunk) { c.Sums = c.Sums[1:] }, moraine.InvalidArgument},
		"another sum":        {func(c *Chunk) { c.Sums[1]++ }, moraine.Corrupt},
		"another crc":        {func(c *Chunk) { c.Header.CRC++ }, moraine.Corrupt},
		"another cluster":    {func(c *Chunk) { c.Header.Cluster[0]++ }, moraine.WrongCluster},
		"not aligned":        {func(c *Chunk) { *c = misaligned(*c) }, moraine.InvalidArgument},
		"no space to pad in": {func(c *Chunk) { c.Data = c.Data[:len(c.Data):len(c.Data)] }, moraine.InvalidArgument},
	} {
		bad := good
		bad.Sums = append([]uint32(nil), good.Sums...)
		c.change(&bad)
		require.ErrorIs(t, bad.Put(t, o.Tier), c.kind, name)
		require.Empty(t, all(t, o.Tier), name)
	}
	require.NoError(t, good.Put(t, o.Tier))
}

func misaligned(c Chunk) Chunk { return ChunkOf(c.Header.ID, c.Header.Version, c.Data[1:5000]) }

func testDelete(t *testing.T, o Opened) {
	a, b := MakeChunk(t, id(1, 0), 1, 10_000, 1), MakeChunk(t, id(2, 0), 1, 10_000, 2)
	require.NoError(t, a.Put(t, o.Tier))
	require.NoError(t, b.Put(t, o.Tier))
	require.NoError(t, o.Tier.Delete(t.Context(), id(77, 0), 9), "a missing chunk is no error")
	require.NoError(t, o.Tier.Delete(t.Context(), id(1, 0), 2))
	requireMissing(t, o.Tier, id(1, 0))
	require.Equal(t, []tiers.Header{b.Header}, all(t, o.Tier))
	require.NoError(t, o.Tier.Delete(t.Context(), id(1, 0), 2), "again")
	require.NoError(t, a.Put(t, o.Tier), "put again")
	a.Check(t, o.Tier)
}

func testDeleteBelow(t *testing.T, o Opened) {
	two := MakeChunk(t, id(1, 0), 2, 10_000, 1)
	require.NoError(t, MakeChunk(t, id(1, 0), 1, 10_000, 5).Put(t, o.Tier))
	require.NoError(t, two.Put(t, o.Tier))
	for _, below := range []moraine.LayoutVersion{0, 1, 2} {
		require.NoError(t, o.Tier.Delete(t.Context(), id(1, 0), below))
		two.Check(t, o.Tier)
	}
	require.NoError(t, o.Tier.Delete(t.Context(), id(1, 0), 3))
	requireMissing(t, o.Tier, id(1, 0))
}

func testDeleteMany(t *testing.T, o Opened) {
	deleter, ok := o.Tier.(tiers.Deleter)
	if !ok {
		t.Skip("the tier has no Deleter")
	}
	var deletions []tiers.Deletion
	var left []tiers.Header
	for i := range 300 {
		c := MakeChunk(t, id(i+1, i%6), 1, 100, uint64(i))
		require.NoError(t, c.Put(t, o.Tier))
		if i%3 == 0 {
			left = append(left, c.Header)
			deletions = append(deletions, tiers.Deletion{ID: c.Header.ID, Below: 1}) // does not cover the chunk
			continue
		}
		deletions = append(deletions, tiers.Deletion{ID: c.Header.ID, Below: 1}, tiers.Deletion{ID: c.Header.ID, Below: 2})
	}
	for i := range 2000 {
		deletions = append(deletions, tiers.Deletion{ID: id(10_000+i, 0), Below: 1})
	}
	require.NoError(t, deleter.DeleteAll(t.Context(), deletions))
	require.Equal(t, left, all(t, o.Tier))
	require.NoError(t, deleter.DeleteAll(t.Context(), nil))
}

func testListPages(t *testing.T, o Opened) {
	var want []tiers.Header
	for i := range 50 {
		c := MakeChunk(t, id(i/3+1, i%3), 1, 10+i, uint64(i))
		require.NoError(t, c.Put(t, o.Tier))
		want = append(want, c.Header)
	}
	var got []tiers.Header
	from := moraine.ChunkID{}
	for {
		page, err := o.Tier.List(t.Context(), from, 7)
		require.NoError(t, err)
		got = append(got, page...)
		if len(page) < 7 {
			break
		}
		from = page[6].ID
		from.Index++
	}
	require.Equal(t, want, got)
	page, err := o.Tier.List(t.Context(), id(5, 1), 2)
	require.NoError(t, err)
	require.Equal(t, want[13:15], page)
	page, err = o.Tier.List(t.Context(), moraine.ChunkID{}, 0)
	require.NoError(t, err)
	require.Empty(t, page)
}

func testUsage(t *testing.T, o Opened) {
	before := o.Tier.Usage()
	require.Zero(t, before.Chunks)
	require.Positive(t, before.CapacityBytes)
	require.False(t, before.Full())
	c := MakeChunk(t, id(1, 0), 1, 1<<20, 1)
	require.NoError(t, c.Put(t, o.Tier))
	after := o.Tier.Usage()
	require.Equal(t, uint64(1), after.Chunks)
	require.GreaterOrEqual(t, after.UsedBytes, before.UsedBytes+1<<20)
	require.NoError(t, o.Tier.Delete(t.Context(), id(1, 0), 2))
	require.Zero(t, o.Tier.Usage().Chunks)
}

func testReopen(t *testing.T, o Opened) {
	kept := map[moraine.ChunkID]Chunk{}
	tier := o.Tier
	for round := range 3 {
		for i := range 20 {
			c := MakeChunk(t, id(i+1, 0), moraine.LayoutVersion(round+1), 1000*(i+1), uint64(100*round+i))
			if (i+round)%3 == 0 {
				require.NoError(t, tier.Delete(t.Context(), c.Header.ID, c.Header.Version))
				delete(kept, c.Header.ID)
				continue
			}
			require.NoError(t, c.Put(t, tier))
			kept[c.Header.ID] = c
		}
		// A chunk may briefly count twice while it is written from one medium to
		// another.
		require.Eventually(t, func() bool { return tier.Usage().Chunks == uint64(len(kept)) }, time.Minute, time.Millisecond)
		tier = o.Reopen(t)
		require.Equal(t, uint64(len(kept)), tier.Usage().Chunks)
		require.Len(t, all(t, tier), len(kept))
		for _, c := range kept {
			c.Check(t, tier)
		}
	}
}

// testConcurrent runs writers and deleters on the same few chunks. Readers must see
// one of the versions whole, or none.
func testConcurrent(t *testing.T, o Opened) {
	const chunks, versions = 4, 6
	made := map[moraine.ChunkID][]Chunk{}
	for c := range chunks {
		for v := range versions {
			key := id(c+1, 0)
			made[key] = append(made[key], MakeChunk(t, key, moraine.LayoutVersion(v+1), 20_000, uint64(10*c+v)))
		}
	}
	var wg sync.WaitGroup
	for worker := range 6 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(worker), 1))
			for range 60 {
				key := id(rng.IntN(chunks)+1, 0)
				c := made[key][rng.IntN(versions)]
				if err := change(t, o.Tier, c, rng.IntN(3)); err != nil {
					t.Errorf("worker %d: %v", worker, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func change(t *testing.T, tier tiers.Tier, c Chunk, what int) error {
	switch what {
	case 0:
		// Puts of one chunk would share its buffer, which Put may pad. So each put
		// uses its own.
		own := MakeChunk(t, c.Header.ID, c.Header.Version, len(c.Data), 0)
		copy(own.Data, c.Data)
		own.Header, own.Sums = c.Header, c.Sums
		if err := own.Put(t, tier); err != nil && !errors.Is(err, moraine.Stale) {
			return err
		}
	case 1:
		return tier.Delete(t.Context(), c.Header.ID, c.Header.Version)
	default:
		got := make([]byte, len(c.Data))
		h, err := tier.Get(t.Context(), c.Header.ID, 0, got)
		if err != nil && !errors.Is(err, moraine.NotFound) {
			return err
		}
		if err == nil && crc.Sum(got) != h.CRC {
			return fmt.Errorf("torn bytes of %s", h.ID)
		}
	}
	return nil
}

func testClosed(t *testing.T, o Opened) {
	c := MakeChunk(t, id(1, 0), 1, 100, 1)
	require.NoError(t, o.Tier.Close())
	require.NoError(t, o.Tier.Close())
	require.ErrorIs(t, c.Put(t, o.Tier), moraine.Unavailable)
	require.ErrorIs(t, o.Tier.Delete(context.Background(), id(1, 0), 1), moraine.Unavailable)
	_, err := o.Tier.Get(t.Context(), id(1, 0), 0, nil)
	require.ErrorIs(t, err, moraine.Unavailable)
	_, err = o.Tier.List(t.Context(), moraine.ChunkID{}, 1)
	require.ErrorIs(t, err, moraine.Unavailable)
}
