package disk_test

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers"
	"github.com/morainefs/moraine/tiers/disk"
	"github.com/morainefs/moraine/tiers/tiertest"
)

var update = flag.Bool("update", false, "write the golden files")

var (
	sampleSalt   = [16]byte{0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf}
	sampleDevice = moraine.UUID{0xd0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	sampleHeader = tiers.Header{ID: moraine.ChunkID{Stripe: 0x0000010000000042, Index: 5}, Version: 3, Tenant: 0x11223344,
		Cluster: tiertest.Cluster, Incarnation: 1, Length: 4097, CRC: 0xdeadbeef, Cipher: 2, KeyID: 0x55667788}
)

func samples() map[string][]byte {
	return map[string][]byte{
		"chunk":     disk.EncodeSample(sampleHeader, []uint32{0x01020304, 0x05060708}, nil, sampleSalt),
		"tombstone": disk.EncodeSample(tiers.Header{}, nil, []tiers.Deletion{{ID: sampleHeader.ID, Below: 4}, {ID: moraine.ChunkID{Stripe: 9}, Below: 2}}, sampleSalt),
		"identity":  disk.IdentityBlock(tiertest.Cluster, sampleDevice, sampleSalt),
		"segment":   disk.SegmentBlock(tiertest.Cluster, sampleDevice, sampleSalt),
	}
}

// TestGoldenFiles compares the formats with bytes written by earlier builds.
func TestGoldenFiles(t *testing.T) {
	for name, got := range samples() {
		path := filepath.Join("testdata", name+".hex")
		text := hex.Dump(bytes.TrimRight(got, "\x00"))
		if *update {
			require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		}
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, string(want), text, "%s", name)
		require.Zero(t, len(got)%4096)
	}
	again, ok := disk.DecodeHead(samples()["chunk"], 3, 2*4096, sampleSalt)
	require.True(t, ok)
	require.Equal(t, samples()["chunk"], again)
}

func TestAHeadElsewhereIsNoRecord(t *testing.T) {
	p := samples()["chunk"]
	other := sampleSalt
	other[3]++
	for _, c := range []struct {
		segment uint64
		off     int64
		salt    [16]byte
	}{{4, 2 * 4096, sampleSalt}, {3, 3 * 4096, sampleSalt}, {3, 2 * 4096, other}} {
		_, ok := disk.DecodeHead(p, c.segment, c.off, c.salt)
		require.False(t, ok)
	}
	for i := range 160 {
		bad := bytes.Clone(p)
		bad[i] ^= 1
		_, ok := disk.DecodeHead(bad, 3, 2*4096, sampleSalt)
		require.False(t, ok, "bit of byte %d", i)
	}
}

// FuzzHead decodes arbitrary bytes, also with correct checksums. The decoder must
// not read out of bounds. What it accepts must encode to the same meaning.
func FuzzHead(f *testing.F) {
	for _, p := range samples() {
		f.Add(p, true)
		f.Add(p[:200], false)
	}
	f.Fuzz(func(t *testing.T, p []byte, seal bool) {
		if seal {
			disk.Seal(p, sampleSalt)
		}
		again, ok := disk.DecodeHead(p, 3, 2*4096, sampleSalt)
		if !ok {
			return
		}
		if twice, ok := disk.DecodeHead(again, 3, 2*4096, sampleSalt); !ok || !bytes.Equal(again, twice) {
			t.Fatal("a head changes when it is encoded again")
		}
	})
}

// FuzzStamps decodes arbitrary bytes, also with a correct checksum: as an identity,
// as the head of a segment, and as an incarnation.
func FuzzStamps(f *testing.F) {
	for _, p := range samples() {
		f.Add(p, true)
	}
	incarnation, err := os.ReadFile("testdata/incarnation-v1.golden")
	require.NoError(f, err)
	f.Add(incarnation, false)
	f.Fuzz(func(t *testing.T, p []byte, seal bool) {
		if seal && len(p) >= 128 {
			disk.Restamp(p)
		}
		_, _, _ = disk.DecodeStamps(p)
	})
}

func TestFormatRefusesWhatIsThere(t *testing.T) {
	mem := vfs.NewMem(1)
	id, err := disk.Format(mem, "/d", tiertest.Cluster, random(1))
	require.NoError(t, err)
	_, err = disk.Format(mem, "/d", tiertest.Cluster, random(2))
	require.ErrorIs(t, err, moraine.Exists)
	got, err := disk.ReadIdentity(mem, "/d")
	require.NoError(t, err)
	require.Equal(t, id, got)
	_, err = disk.ReadIdentity(mem, "/e")
	require.ErrorIs(t, err, moraine.NotFound)
	_, err = disk.Open(config("/e"), disk.Deps{FS: mem})
	require.ErrorIs(t, err, moraine.NotFound)
}

func TestFormatRefusesSegmentsWithoutIdentity(t *testing.T) {
	mem := vfs.NewMem(1)
	format(t, mem, "/d")
	d := open(t, mem, config("/d"))
	require.NoError(t, tiertest.MakeChunk(t, moraine.ChunkID{Stripe: 1}, 1, 10, 1).Put(t, d))
	require.NoError(t, d.Close())
	require.NoError(t, mem.Remove("/d/device"))
	_, err := disk.Format(mem, "/d", tiertest.Cluster, random(1))
	require.ErrorIs(t, err, moraine.Corrupt)
}

func TestOpenRefusesAnotherCluster(t *testing.T) {
	mem := vfs.NewMem(1)
	format(t, mem, "/d")
	cfg := config("/d")
	cfg.Cluster = moraine.UUID{9}
	_, err := disk.Open(cfg, disk.Deps{FS: mem})
	require.ErrorIs(t, err, moraine.WrongCluster)
	cfg.Cluster = moraine.UUID{}
	d, err := disk.Open(cfg, disk.Deps{FS: mem})
	require.NoError(t, err, "no cluster named: whoever's it is")
	require.Equal(t, tiertest.Cluster, d.Identity().Cluster)
	require.NoError(t, d.Close())
}

func TestOpenRefusesASecondOpener(t *testing.T) {
	mem := vfs.NewMem(1)
	format(t, mem, "/d")
	d := open(t, mem, config("/d"))
	_, err := disk.Open(config("/d"), disk.Deps{FS: mem})
	require.ErrorIs(t, err, moraine.Busy)
	require.NoError(t, d.Close())
	require.NoError(t, open(t, mem, config("/d")).Close())
}

// overwrite changes a file in place.
func overwrite(t testing.TB, fsys vfs.FS, name string, off int64, change func(p []byte), n int) {
	t.Helper()
	f, err := fsys.Open(name, vfs.Write)
	require.NoError(t, err)
	defer f.Close()
	p := make([]byte, n)
	_, err = f.ReadAt(p, off)
	require.NoError(t, err)
	change(p)
	_, err = f.WriteAt(p, off)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
}

func TestOpenRefusesDamagedAndNewerIdentities(t *testing.T) {
	for name, c := range map[string]struct {
		identity []byte
		kind     moraine.Kind
	}{
		"flipped bit": {flip(samples()["identity"], 40), moraine.Corrupt},
		"empty":       {make([]byte, 4096), moraine.Corrupt},
		"newer":       {newer(samples()["identity"]), moraine.NewerFormat},
	} {
		mem := vfs.NewMem(1)
		format(t, mem, "/d")
		overwrite(t, mem, "/d/device", 0, func(p []byte) { copy(p, c.identity) }, 4096)
		_, err := disk.Open(config("/d"), disk.Deps{FS: mem})
		require.ErrorIs(t, err, c.kind, name)
	}
}

func TestOpenRefusesSegmentsOfANewerFormat(t *testing.T) {
	mem := vfs.NewMem(1)
	format(t, mem, "/d")
	overwrite(t, mem, "/d/device", 0, func(p []byte) {
		copy(p, disk.IdentityBlock(tiertest.Cluster, sampleDevice, sampleSalt))
	}, 4096)
	f, err := mem.Open("/d/segments/0000000000000007.seg", vfs.Create)
	require.NoError(t, err)
	_, err = f.WriteAt(newer(samples()["segment"]), 0)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	_, err = disk.Open(config("/d"), disk.Deps{FS: mem})
	require.ErrorIs(t, err, moraine.NewerFormat)
}

func flip(p []byte, i int) []byte {
	p = bytes.Clone(p)
	p[i] ^= 0x10
	return p
}

// newer is a stamp with a format version that this build does not support.
func newer(p []byte) []byte {
	p = bytes.Clone(p)
	p[8] = 2
	disk.Restamp(p)
	return p
}
