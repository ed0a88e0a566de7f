package ckpt_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite golden files")

func sampleIndex() ([]ckpt.FileInfo, []ckpt.TensorInfo) {
	files := []ckpt.FileInfo{
		{Name: "rank-00000-of-00002.safetensors", Kind: ckpt.TensorFile, Size: 1 << 40, CRC: 0xdeadbeef, Root: [32]byte{1, 2, 3}},
		{Name: "rank-00000-of-00002.rng.blob", Kind: ckpt.BlobFile, Size: 17, CRC: 5, Blob: "rng", Digest: ckpt.Digest{9, 8}},
		{Name: "rank-00001-of-00002.safetensors", Kind: ckpt.TensorFile, Rank: 1, Size: 1 << 40, CRC: 0xfeedface, Root: [32]byte{4, 5, 6}},
		{Name: "mp%2Foptimizer.pt", Kind: ckpt.AdoptedFile, Rank: 1, Size: 100},
		{Name: "model.safetensors", Kind: ckpt.AdoptedTensors, Rank: 1, Size: 1000},
	}
	for i := range files {
		files[i].Path = files[i].Name
	}
	files[3].Path = "mp/optimizer.pt"
	tensors := []ckpt.TensorInfo{
		{Name: "a.scalar", DType: safetensors.I64, Shape: []int64{}, Slices: []ckpt.SliceInfo{
			{File: 0, Offset: []int64{}, Shape: []int64{}, Begin: 4096, Digest: ckpt.Digest{1}}}},
		{Name: "empty", DType: safetensors.F16, Shape: []int64{0, 3}},
		{Name: "w", DType: safetensors.BF16, Shape: []int64{128256, 4096}, Slices: []ckpt.SliceInfo{
			{File: 0, Offset: []int64{0, 0}, Shape: []int64{64128, 4096}, Begin: 8192, Digest: ckpt.Digest{2}},
			{File: 2, Offset: []int64{64128, 0}, Shape: []int64{64128, 4096}, Begin: 4096, Digest: ckpt.Digest{3}}}},
		{Name: "x", DType: safetensors.F32, Shape: []int64{4}, Slices: []ckpt.SliceInfo{{File: 4, Offset: []int64{0}, Shape: []int64{4}, Begin: 900}}},
	}
	return files, tensors
}

func TestIndexGolden(t *testing.T) {
	files, tensors := sampleIndex()
	got, err := ckpt.EncodeIndex(0x10000000065, 3, 2000, 2, files, tensors)
	require.NoError(t, err)
	path := filepath.Join("testdata", "index.golden")
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, got, 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, got)
	f, ts, err := ckpt.DecodeIndex(want)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(files, f))
	require.Empty(t, cmp.Diff(tensors, ts))
}

// TestIndexOfManyBlocks finds each tensor of an index that has many.
func TestIndexOfManyBlocks(t *testing.T) {
	files, _ := sampleIndex()
	var tensors []ckpt.TensorInfo
	for i := range 20000 {
		tensors = append(tensors, ckpt.TensorInfo{Name: fmt.Sprintf("layer.%06d.weight", i), DType: safetensors.F32, Shape: []int64{4},
			Slices: []ckpt.SliceInfo{{Offset: []int64{0}, Shape: []int64{4}, Begin: int64(16 * i)}}})
	}
	b, err := ckpt.EncodeIndex(1, 1, 1, 2, files, tensors)
	require.NoError(t, err)
	_, got, err := ckpt.DecodeIndex(b)
	require.NoError(t, err)
	require.True(t, reflect.DeepEqual(tensors, got))
}

// TestIndexFindsEveryFlippedByte changes each byte of a small index in turn.
func TestIndexFindsEveryFlippedByte(t *testing.T) {
	files, tensors := sampleIndex()
	b, err := ckpt.EncodeIndex(1, 3, 2000, 2, files, tensors)
	require.NoError(t, err)
	for i := range b {
		b[i] ^= 0x10
		_, _, err := ckpt.DecodeIndex(b)
		require.ErrorIs(t, err, moraine.Corrupt, "byte %d", i)
		b[i] ^= 0x10
	}
	for n := range b {
		_, _, err := ckpt.DecodeIndex(b[:n])
		require.Error(t, err, "cut to %d bytes", n)
	}
}

func TestIndexRefusesASliceOutsideItsFile(t *testing.T) {
	files, tensors := sampleIndex()
	files[0].Size = 4096
	b, err := ckpt.EncodeIndex(1, 3, 2000, 2, files, tensors)
	require.NoError(t, err)
	_, _, err = ckpt.DecodeIndex(b)
	require.ErrorContains(t, err, "past the end of file 0")
	files[0].Size = 1 << 40
	tensors[2].Slices[1].File = 1
	b, err = ckpt.EncodeIndex(1, 3, 2000, 2, files, tensors)
	require.NoError(t, err)
	_, _, err = ckpt.DecodeIndex(b)
	require.ErrorContains(t, err, "past the end of file 1")
}

// TestIndexNamesNoFileElsewhere: a restore creates files with the names in an index, which may
// come from a stolen host.
func TestIndexNamesNoFileElsewhere(t *testing.T) {
	for _, name := range []string{"../../home/user/.ssh/authorized_keys", "/etc/passwd", "a/b", "..", ".", "", "a\x00"} {
		files, tensors := sampleIndex()
		files[1].Name = name
		b, err := ckpt.EncodeIndex(1, 3, 2000, 2, files, tensors)
		require.NoError(t, err)
		_, _, err = ckpt.DecodeIndex(b)
		require.ErrorIs(t, err, moraine.Corrupt, "%q", name)
	}
}

func FuzzIndex(f *testing.F) {
	golden, err := os.ReadFile(filepath.Join("testdata", "index.golden"))
	require.NoError(f, err)
	f.Add(golden)
	f.Add(golden[len(golden)-64:])
	f.Fuzz(func(t *testing.T, b []byte) {
		ckpt.Reseal(b) // matching checksums, so that the fuzzer reaches the fields behind them
		_, tensors, err := ckpt.DecodeIndex(b)
		if err != nil {
			return
		}
		for i := 1; i < len(tensors); i++ {
			if tensors[i-1].Name >= tensors[i].Name {
				t.Fatalf("%q stands before %q", tensors[i-1].Name, tensors[i].Name)
			}
		}
	})
}
