package disk_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers"
	"github.com/morainefs/moraine/tiers/disk"
	"github.com/morainefs/moraine/tiers/tiertest"
)

const firstSegment = "/d/segments/0000000000000001.seg"

func mustList(t testing.TB, d *disk.Device) []tiers.Header {
	t.Helper()
	headers, err := d.List(t.Context(), moraine.ChunkID{}, 1<<20)
	require.NoError(t, err)
	return headers
}

// flipBits flips bits of the first segment, after the segment's own first block.
func flipBits(t testing.TB, mem *vfs.Mem, rng *rand.Rand, n int) {
	t.Helper()
	info, err := mem.Stat(firstSegment)
	require.NoError(t, err)
	for range n {
		off := 4096 + rng.Int64N(info.Size-4096)
		overwrite(t, mem, firstSegment, off, func(p []byte) { p[0] ^= 1 << rng.IntN(8) }, 1)
	}
}

// TestFlippedBitsAreNeverServed flips random bits and reads everything, in whole
// and in part, with the index and without it.
func TestFlippedBitsAreNeverServed(t *testing.T) {
	found := 0
	for seed := range uint64(40) {
		mem := vfs.NewMem(seed)
		format(t, mem, "/d")
		d := open(t, mem, config("/d"))
		for n := range 8 {
			require.NoError(t, chunkNumber(t, n).Put(t, d))
		}
		require.NoError(t, d.Close())
		rng := rand.New(rand.NewPCG(seed, 1))
		flipBits(t, mem, rng, 1+rng.IntN(3))
		if seed%2 == 0 {
			require.NoError(t, mem.RemoveAll("/d/index"))
		}
		d, err := disk.Open(config("/d"), disk.Deps{FS: mem})
		require.NoError(t, err, "seed %d: a damaged record must not keep a device from opening", seed)
		bad := 0
		for n := range 8 {
			bad += readBoth(t, d, chunkNumber(t, n))
		}
		r := d.Recovered()
		found += bad
		require.LessOrEqual(t, bad, 3, "seed %d: %+v", seed, r)
		require.NoError(t, d.Err(), "seed %d: damage of a chunk is no failure of the device", seed)
		require.NoError(t, d.Close())
	}
	require.Greater(t, found, 30, "most bits are somebody's; the others are padding")
}

// readBoth reads a chunk in whole and in part. It returns 1 if either read failed.
func readBoth(t *testing.T, d *disk.Device, c tiertest.Chunk) int {
	refused := 0
	for _, rng := range [][2]int64{{0, c.Header.Length}, {20_000, 5000}} {
		got := make([]byte, rng[1])
		_, err := d.Get(t.Context(), c.Header.ID, rng[0], got)
		if err != nil {
			require.True(t, moraine.KindOf(err) == moraine.Corrupt || moraine.KindOf(err) == moraine.NotFound, "%v", err)
			refused = 1
			continue
		}
		require.Equal(t, crc.Sum(c.Data[rng[0]:rng[0]+rng[1]]), crc.Sum(got))
	}
	return refused
}

func TestAMisplacedRecordIsNotServed(t *testing.T) {
	mem := vfs.NewMem(1)
	format(t, mem, "/d")
	d := open(t, mem, config("/d"))
	a, b := chunkNumber(t, 0), chunkNumber(t, 1)
	require.NoError(t, a.Put(t, d))
	require.NoError(t, b.Put(t, d))
	require.NoError(t, d.Close())
	// The second record is written over the first, as a misdirected write would.
	size := int64(9 * 4096)
	f, err := mem.Open(firstSegment, vfs.Write)
	require.NoError(t, err)
	p := make([]byte, size)
	_, err = f.ReadAt(p, 4096+size)
	require.NoError(t, err)
	_, err = f.WriteAt(p, 4096)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	d = open(t, mem, config("/d"))
	_, err = d.Get(t.Context(), a.Header.ID, 0, make([]byte, 10))
	require.ErrorIs(t, err, moraine.Corrupt)
	b.Check(t, d)
}

// TestStoredBytesCannotPassAsARecord stores a copy of a segment as a chunk. It then
// erases that chunk's own head and has the device scanned.
func TestStoredBytesCannotPassAsARecord(t *testing.T) {
	mem := vfs.NewMem(1)
	format(t, mem, "/d")
	d := open(t, mem, config("/d"))
	require.NoError(t, chunkNumber(t, 0).Put(t, d))
	f, err := mem.Open(firstSegment, vfs.Read)
	require.NoError(t, err)
	forged := tiertest.MakeChunk(t, moraine.ChunkID{Stripe: 50}, 1, 20*4096, 1)
	_, err = f.ReadAt(forged.Data[:10*4096], 4096)
	require.NoError(t, err)
	forged = tiertest.ChunkOf(forged.Header.ID, 1, forged.Data)
	require.NoError(t, forged.Put(t, d))
	require.NoError(t, d.Close())
	overwrite(t, mem, firstSegment, 10*4096, func(p []byte) { clear(p) }, 4096)
	require.NoError(t, mem.RemoveAll("/d/index"))
	d = open(t, mem, config("/d"))
	require.Equal(t, []tiers.Header{chunkNumber(t, 0).Header}, mustList(t, d))
	require.Positive(t, d.Recovered().CorruptBlocks)
}

func TestALostIndexIsMadeAgain(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, mem *vfs.Mem){
		"removed": func(t *testing.T, mem *vfs.Mem) { require.NoError(t, mem.RemoveAll("/d/index")) },
		"marked":  func(t *testing.T, mem *vfs.Mem) { create(t, mem, "/d/rebuild-index") },
		"every file damaged": func(t *testing.T, mem *vfs.Mem) {
			names, err := mem.List("/d/index")
			require.NoError(t, err)
			for _, name := range names {
				if info, err := mem.Stat("/d/index/" + name); err == nil && info.Size > 0 {
					overwrite(t, mem, "/d/index/"+name, 0, func(p []byte) {
						for i := range p {
							p[i] ^= 0x55
						}
					}, int(info.Size))
				}
			}
		},
		"another device's": func(t *testing.T, mem *vfs.Mem) {
			_, err := disk.Format(mem, "/other", tiertest.Cluster, random(7))
			require.NoError(t, err)
			require.NoError(t, open(t, mem, config("/other")).Close())
			require.NoError(t, mem.RemoveAll("/d/index"))
			require.NoError(t, mem.Rename("/other/index", "/d/index"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			mem := vfs.NewMem(1)
			format(t, mem, "/d")
			d := open(t, mem, config("/d"))
			for n := range 60 {
				require.NoError(t, chunkNumber(t, n).Put(t, d))
			}
			for n := range 30 {
				require.NoError(t, d.Delete(t.Context(), moraine.ChunkID{Stripe: moraine.StripeID(2*n + 1)}, 2))
			}
			want := mustList(t, d)
			require.NoError(t, d.Close())
			lose(t, mem)
			d = open(t, mem, config("/d"))
			require.Equal(t, want, mustList(t, d))
			require.Positive(t, d.Recovered().Records)
			for n := range 30 {
				chunkNumber(t, 2*n+1).Check(t, d)
			}
			require.NoError(t, d.Close())
			d = open(t, mem, config("/d"))
			require.Zero(t, d.Recovered().Segments, "once is enough")
		})
	}
}

func create(t *testing.T, mem *vfs.Mem, name string) {
	f, err := mem.Open(name, vfs.Create)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

func TestALostSegmentLosesOnlyItsChunks(t *testing.T) {
	mem := vfs.NewMem(1)
	format(t, mem, "/d")
	d := open(t, mem, config("/d"))
	for n := range 60 {
		require.NoError(t, chunkNumber(t, n).Put(t, d))
	}
	require.NoError(t, d.Close())
	require.NoError(t, mem.Remove(firstSegment))
	d = open(t, mem, config("/d"))
	r := d.Recovered()
	require.Equal(t, 1, r.LostSegments)
	require.Positive(t, r.LostChunks)
	require.Len(t, mustList(t, d), 60-r.LostChunks)
	_, err := d.Get(t.Context(), moraine.ChunkID{Stripe: 1}, 0, nil)
	require.ErrorIs(t, err, moraine.NotFound)
	chunkNumber(t, 59).Check(t, d)
}

func TestASegmentWithADamagedFirstBlockIsRead(t *testing.T) {
	mem := vfs.NewMem(1)
	format(t, mem, "/d")
	d := open(t, mem, config("/d"))
	require.NoError(t, chunkNumber(t, 0).Put(t, d))
	require.NoError(t, d.Close())
	overwrite(t, mem, firstSegment, 0, func(p []byte) { clear(p) }, 4096)
	require.NoError(t, mem.RemoveAll("/d/index"))
	chunkNumber(t, 0).Check(t, open(t, mem, config("/d")))
}

func TestInspectListsRecords(t *testing.T) {
	mem := vfs.NewMem(1)
	format(t, mem, "/d")
	d := open(t, mem, config("/d"))
	for n := range 3 {
		require.NoError(t, chunkNumber(t, n).Put(t, d))
	}
	require.NoError(t, d.Delete(t.Context(), moraine.ChunkID{Stripe: 2}, 2))
	overwrite(t, mem, firstSegment, 4096+3*4096, func(p []byte) { p[5] ^= 1 }, 4096)
	var infos []disk.RecordInfo
	info, err := disk.InspectSegment(mem, firstSegment, true, func(r disk.RecordInfo) error {
		infos = append(infos, r)
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, d.Identity(), info.Identity)
	require.Equal(t, uint64(1), info.Number)
	require.Len(t, infos, 4)
	require.Error(t, infos[0].Damage)
	require.NoError(t, infos[1].Damage)
	require.Equal(t, chunkNumber(t, 1).Header, infos[1].Header)
	require.Equal(t, []tiers.Deletion{{ID: moraine.ChunkID{Stripe: 2}, Below: 2}}, infos[3].Tombstone)
	require.Equal(t, uint64(4), infos[3].Sequence)
	_, err = disk.InspectSegment(mem, "/d/device", false, nil)
	require.ErrorIs(t, err, moraine.Corrupt)
	count := 0
	require.NoError(t, disk.Inspect(mem, "/d", false, func(disk.RecordInfo) error { count++; return nil }))
	require.Equal(t, 4, count)
}
