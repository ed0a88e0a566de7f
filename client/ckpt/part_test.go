package ckpt_test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/stretchr/testify/require"
)

// partFile returns the first file of rank 1 of 2 of a model.
func partFile(t testing.TB) []byte {
	t.Helper()
	f := newFake()
	info := save(t, f, makeModel(1), 100, 2)
	return f.files[f.dirs[uint64(info.Dir)]["rank-00001-of-00002.safetensors"]]
}

func headerOf(b []byte) []byte { return b[:8+binary.LittleEndian.Uint64(b)] }

// TestPartGolden compares the header that a save writes with a golden file.
func TestPartGolden(t *testing.T) {
	got := headerOf(partFile(t))
	path := filepath.Join("testdata", "part.golden")
	if *update {
		require.NoError(t, os.WriteFile(path, got, 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
}

// TestPartsAreReadFast reads what saves write by the path for it, and finds what the other path finds:
// with blobs, without any tensor, and with names that JSON escapes.
func TestPartsAreReadFast(t *testing.T) {
	file := partFile(t)
	head := headerOf(file)
	fast, err := ckpt.ComparePaths(head, int64(len(file)))
	require.NoError(t, err)
	require.True(t, fast)
	for name, m := range map[string]struct {
		model
		fast bool
	}{
		"no tensor":       {nil, true},
		"an escaped name": {model{{name: "a<b", dtype: ckpt.U8, shape: []int64{2}, data: []byte{1, 2}}}, false},
		"UTF-8":           {model{{name: "é", dtype: ckpt.U8, shape: []int64{2}, data: []byte{1, 2}}}, true},
		"one byte":        {model{{name: "w", dtype: ckpt.U8, shape: []int64{}, data: []byte{1}}}, true},
	} {
		f := newFake()
		info := save(t, f, m.model, 100, 1)
		file := f.files[f.dirs[uint64(info.Dir)]["rank-00000-of-00001.safetensors"]]
		fast, err := ckpt.ComparePaths(headerOf(file), int64(len(file)))
		require.NoError(t, err, name)
		require.Equal(t, m.fast, fast, name)
	}
}

// TestAChangedHeaderIsTheSameToBothPaths changes each byte of a header, and the place of a tensor. What
// the fast path takes, the other one takes too, and finds the same in it.
func TestAChangedHeaderIsTheSameToBothPaths(t *testing.T) {
	f := newFake()
	m := model{{name: "a", dtype: ckpt.U8, shape: []int64{2}, data: []byte{1, 2}}, {name: "b", dtype: ckpt.U8, shape: []int64{2}, data: []byte{1, 2}},
		{name: "c", dtype: ckpt.U8, shape: []int64{2}, data: []byte{1, 2}}}
	info := save(t, f, m, 100, 1)
	file := f.files[f.dirs[uint64(info.Dir)]["rank-00000-of-00001.safetensors"]]
	head := headerOf(file)
	for i := 8; i < len(head) && head[i] != ' '; i++ {
		old := head[i]
		for _, c := range []byte{'0', '7', 'z', '"', '\\', '}', ' ', ',', 0x80, old ^ 1} {
			head[i] = c
			_, err := ckpt.ComparePaths(head, int64(len(file)))
			require.NoError(t, err, "%q at byte %d", c, i)
		}
		head[i] = old
	}
	for _, place := range []string{"[0,2]", "[2,5]", "[4,6]", "[3,5]", "[2, 4]", "[02,4]", "[2,3]"} {
		b := replaceHeader(t, head, `"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}`, `"b":{"dtype":"U8","shape":[2],"data_offsets":`+place+`}`)
		_, err := ckpt.ComparePaths(b, int64(len(b)+6))
		require.NoError(t, err, place)
	}
}

// TestDigestGolden compares the digest of a run of bytes with a constant.
func TestDigestGolden(t *testing.T) {
	p := make([]byte, 10_000)
	for i := range p {
		p[i] = byte(i)
	}
	require.Equal(t, "3ed5c557ac93dba70fa5b908b6f11f6b", ckpt.DigestOf(p).String())
	require.Equal(t, "3231c47245fd57b30d298bd6c7f4d19c", ckpt.DigestOf(nil).String())
}

func TestPartRefuses(t *testing.T) {
	file := partFile(t)
	head := headerOf(file)
	_, err := ckpt.ParsePart(head, int64(len(file)))
	require.NoError(t, err)
	for name, c := range map[string]struct{ old, new string }{
		"a newer version":      {`{\"version\":1,`, `{\"version\":2,`},
		"no part":              {"MORAINE_PART", "MORAINE_TRAP"},
		"no slices":            {"DCP_SHARDING_INFO", "DCP_SHARDING_INF0"},
		"a digest cut short":   {`\"digest\":\"`, `\"digest\":\"x`},
		"a slice out of place": {`{\"saved_offsets\":[51,0]}`, `{\"saved_offsets\":[52,0]}`},
	} {
		b := replaceHeader(t, head, c.old, c.new)
		_, err := ckpt.ParsePart(b, int64(len(b)+len(file)-len(head)))
		require.Error(t, err, name)
		if name == "a newer version" {
			require.ErrorIs(t, err, moraine.NewerFormat)
		}
	}
}

func FuzzPart(f *testing.F) {
	golden, err := os.ReadFile(filepath.Join("testdata", "part.golden"))
	require.NoError(f, err)
	f.Add(golden[8:], int64(14000))
	file := partFile(f)
	head := headerOf(file)
	f.Add(head[8:], int64(len(file)-len(head)))
	f.Add([]byte(`{"__metadata__":{"MORAINE_PART":"{\"version\":1}","DCP_SHARDING_INFO":"{}"}}`), int64(0))
	f.Fuzz(func(t *testing.T, json []byte, data int64) {
		b := append(binary.LittleEndian.AppendUint64(nil, uint64(len(json))), json...)
		if _, err := ckpt.ComparePaths(b, int64(len(b))+data); err != nil {
			t.Fatal(err)
		}
		slices, err := ckpt.ParsePart(b, int64(len(b))+data)
		if err != nil {
			return
		}
		for _, s := range slices {
			if len(s.Offset) != len(s.Shape) || s.Begin < int64(len(b)) {
				t.Fatalf("slice %+v", s)
			}
		}
	})
}

// replaceHeader changes text of a header and its length field.
func replaceHeader(t *testing.T, head []byte, old, new string) []byte {
	t.Helper()
	json := strings.Replace(string(head[8:]), old, new, 1)
	require.NotEqual(t, string(head[8:]), json, "%s is not there", old)
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(json))), json...)
}
