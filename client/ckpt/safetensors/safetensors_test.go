package safetensors_test

import (
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "rewrite golden files")

func sample(t *testing.T) *safetensors.Header {
	t.Helper()
	h := &safetensors.Header{
		Metadata: map[string]string{"format": "pt", "DCP_VERSION": "1.0", "note": "quote \" and é and \u2028"},
		Tensors: []safetensors.Tensor{
			{Name: "flag", DType: safetensors.Bool, Shape: []int64{3}},
			{Name: "scalar", DType: safetensors.F64, Shape: []int64{}},
			{Name: "norm.weight", DType: safetensors.F32, Shape: []int64{5}},
			{Name: "embed.weight", DType: safetensors.BF16, Shape: []int64{32, 64}},
			{Name: "empty", DType: safetensors.I64, Shape: []int64{0, 7}},
		},
	}
	require.NoError(t, safetensors.Order(h.Tensors))
	return h
}

func TestGolden(t *testing.T) {
	h := sample(t)
	got, err := h.Encode()
	require.NoError(t, err)
	path := filepath.Join("testdata", "header.golden")
	if *update {
		require.NoError(t, os.WriteFile(path, got, 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))

	back, err := safetensors.Parse(want, int64(len(want))+h.DataLen())
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(h, back))
}

func TestOrderAligns(t *testing.T) {
	h := sample(t)
	for _, x := range h.Tensors {
		if x.Size() > 0 && x.Size()%safetensors.Alignment == 0 {
			require.Zero(t, x.Begin%safetensors.Alignment, x.Name)
		}
		require.Zero(t, x.Begin%int64(x.DType.Size()), x.Name)
	}
}

func TestOrderRefuses(t *testing.T) {
	for name, in := range map[string][]safetensors.Tensor{
		"a name twice":       {{Name: "a", DType: safetensors.U8, Shape: []int64{1}}, {Name: "a", DType: safetensors.F32, Shape: []int64{1}}},
		"an unknown type":    {{Name: "a", DType: 99, Shape: []int64{1}}},
		"a negative shape":   {{Name: "a", DType: safetensors.U8, Shape: []int64{-1}}},
		"an overflow":        {{Name: "a", DType: safetensors.F64, Shape: []int64{1 << 40, 1 << 40}}},
		"a file too large":   {{Name: "a", DType: safetensors.U8, Shape: []int64{1 << 60}}, {Name: "b", DType: safetensors.U8, Shape: []int64{1 << 60}}},
		"too many dimension": {{Name: "a", DType: safetensors.U8, Shape: make([]int64, safetensors.MaxDims+1)}},
	} {
		require.Error(t, safetensors.Order(in), name)
	}
}

func file(json string) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(json)))
	return append(b, json...)
}

func TestParseRefuses(t *testing.T) {
	const ok = `{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`
	_, err := safetensors.Parse(file(ok), int64(len(file(ok))+2))
	require.NoError(t, err)
	two := func(a, b string) string {
		return fmt.Sprintf(`{"a":{"dtype":"U8","shape":[2],"data_offsets":%s},"b":{"dtype":"U8","shape":[2],"data_offsets":%s}}`, a, b)
	}
	for name, c := range map[string]struct {
		json string
		data int64
		want string
	}{
		"no object":              {`[]`, 0, "begin with {"},
		"leading space":          {` {}`, 0, "begin with {"},
		"empty":                  {``, 0, "begin with {"},
		"data past the tensors":  {ok, 3, "data section has 3"},
		"data cut short":         {ok, 1, "data section has 1"},
		"a gap":                  {two("[0,2]", "[3,5]"), 5, "must begin at 2"},
		"an overlap":             {two("[0,2]", "[1,3]"), 3, "must begin at 2"},
		"begin after end":        {two("[0,2]", "[2,1]"), 2, "must begin at"},
		"size against shape":     {`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,2]}}`, 2, "has 8"},
		"unknown type":           {`{"a":{"dtype":"F3","shape":[2],"data_offsets":[0,2]}}`, 2, "unknown type"},
		"type in lower case":     {`{"a":{"dtype":"u8","shape":[2],"data_offsets":[0,2]}}`, 2, "unknown type"},
		"key in upper case":      {`{"a":{"DTYPE":"U8","shape":[2],"data_offsets":[0,2]}}`, 2, "unknown or listed twice"},
		"a field twice":          {`{"a":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, 2, "listed twice"},
		"a field missing":        {`{"a":{"dtype":"U8","shape":[2]}}`, 2, "missing"},
		"three offsets":          {`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2,4]}}`, 2, "more than 2"},
		"a negative number":      {`{"a":{"dtype":"U8","shape":[-2],"data_offsets":[0,2]}}`, 2, "whole number"},
		"a fraction":             {`{"a":{"dtype":"U8","shape":[2.0],"data_offsets":[0,2]}}`, 2, "expected"},
		"a leading zero":         {`{"a":{"dtype":"U8","shape":[02],"data_offsets":[0,2]}}`, 2, "whole number"},
		"a number past int64":    {`{"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,2]}}`, 2, "past 2^63"},
		"a name twice":           {`{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 0, "listed twice"},
		"metadata twice":         {`{"__metadata__":{},"__metadata__":{}}`, 0, "listed twice"},
		"a metadata key twice":   {`{"__metadata__":{"a":"b","a":"c"}}`, 0, "listed twice"},
		"metadata not a string":  {`{"__metadata__":{"a":1}}`, 0, "expected"},
		"metadata like a tensor": {`{"__metadata__":{"dtype":"U8","shape":[2]}}`, 0, "expected"},
		"trailing text":          {`{}x`, 0, "after its JSON object"},
		"trailing comma":         {`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},}`, 2, "expected"},
		"a string without end":   {`{"a`, 0, "does not end"},
		"a string with escape":   {`{"a\`, 0, "does not end"},
		"half a surrogate":       {`{"\ud800":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, 2, "no character"},
		"not UTF-8":              {"{\"\xff\":{}}", 0, "UTF-8"},
		"a control character":    {"{\"\n\":{}}", 0, "control"},
	} {
		b := file(c.json)
		_, err := safetensors.Parse(b, int64(len(b))+c.data)
		require.ErrorContains(t, err, c.want, name)
	}
}

// TestTypes: all types of the format whose elements are whole bytes have the name and the size that they have there.
// The others are refused as types that are not supported.
func TestTypes(t *testing.T) {
	sizes := map[string]int{
		"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1,
		"I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "C64": 8, "F64": 8, "I64": 8, "U64": 8,
	}
	for name, size := range sizes {
		d, err := safetensors.ParseDType(name)
		require.NoError(t, err, name)
		require.Equal(t, size, d.Size(), name)
		require.Equal(t, name, d.String())
		b := file(fmt.Sprintf(`{"a":{"dtype":%q,"shape":[3],"data_offsets":[0,%d]}}`, name, 3*size))
		_, err = safetensors.Parse(b, int64(len(b)+3*size))
		require.NoError(t, err, name)
	}
	for _, name := range []string{"F4", "F6_E2M3", "F6_E3M2"} {
		_, err := safetensors.ParseDType(name)
		require.ErrorIs(t, err, safetensors.ErrDType)
		require.ErrorContains(t, err, "type "+name+" is not supported yet")
	}
}

func TestParseBounds(t *testing.T) {
	_, err := safetensors.HeaderLen([]byte{1, 2, 3})
	require.ErrorContains(t, err, "no header")
	_, err = safetensors.HeaderLen(binary.LittleEndian.AppendUint64(nil, safetensors.MaxHeader+1))
	require.ErrorContains(t, err, "at most")
	_, err = safetensors.HeaderLen(binary.LittleEndian.AppendUint64(nil, 1<<63))
	require.ErrorContains(t, err, "at most")
	b := file(`{}`)
	_, err = safetensors.Parse(b, int64(len(b))-1)
	require.ErrorContains(t, err, "cannot hold")
	_, err = safetensors.Parse(b[:len(b)-1], int64(len(b)))
	require.ErrorContains(t, err, "length field")
}

func TestEncodeRefuses(t *testing.T) {
	h := &safetensors.Header{Tensors: []safetensors.Tensor{{Name: "a", DType: safetensors.U8, Shape: []int64{2}, Begin: 1, End: 3}}}
	_, err := h.Encode()
	require.ErrorContains(t, err, "begin at 0")
	h = &safetensors.Header{Tensors: []safetensors.Tensor{{Name: "__metadata__", DType: safetensors.U8, Shape: []int64{0}}}}
	_, err = h.Encode()
	require.ErrorContains(t, err, "cannot be named")
	h = &safetensors.Header{Metadata: map[string]string{"a": "\xff"}}
	_, err = h.Encode()
	require.ErrorContains(t, err, "UTF-8")
}

// TestRoundTrip compares Parse with Encode for any header.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &safetensors.Header{}
		if m := rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "metadata"); len(m) > 0 {
			h.Metadata = m
		}
		for _, name := range rapid.SliceOfDistinct(rapid.String(), rapid.ID).Draw(t, "names") {
			if name == "__metadata__" {
				continue
			}
			h.Tensors = append(h.Tensors, safetensors.Tensor{Name: name,
				DType: rapid.SampledFrom([]safetensors.DType{safetensors.F64, safetensors.BF16, safetensors.F8E4M3, safetensors.Bool}).Draw(t, "dtype"),
				Shape: append([]int64{}, rapid.SliceOfN(rapid.Int64Range(0, 4096), 0, 3).Draw(t, "shape")...)})
		}
		if err := safetensors.Order(h.Tensors); err != nil {
			t.Fatal(err)
		}
		b, err := h.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if h.DataStart%safetensors.Alignment != 0 || h.DataStart != int64(len(b)) {
			t.Fatalf("data starts at %d", h.DataStart)
		}
		back, err := safetensors.Parse(b, h.DataStart+h.DataLen())
		if err != nil {
			t.Fatal(err)
		}
		// Empty tensors share their Begin with others, so their order is free.
		byName := func(h *safetensors.Header) map[string]safetensors.Tensor {
			m := make(map[string]safetensors.Tensor)
			for _, x := range h.Tensors {
				m[x.Name] = x
			}
			return m
		}
		if d := cmp.Diff(byName(h), byName(back)); d != "" {
			t.Fatal(d)
		}
		if d := cmp.Diff(h.Metadata, back.Metadata); d != "" {
			t.Fatal(d)
		}
	})
}

func FuzzParse(f *testing.F) {
	golden, err := os.ReadFile(filepath.Join("testdata", "header.golden"))
	require.NoError(f, err)
	f.Add(golden[8:], int64(4096+8+20+3))
	f.Add([]byte(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`), int64(2))
	f.Add([]byte(`{"__metadata__":{"a\u00e9":"b"}}   `), int64(0))
	f.Add([]byte(strings.Repeat("[", 100)), int64(0))
	f.Fuzz(func(t *testing.T, json []byte, data int64) {
		b := file(string(json))
		h, err := safetensors.Parse(b, int64(len(b))+data)
		if err != nil {
			return
		}
		var at int64
		for _, x := range h.Tensors {
			if x.Begin != at || x.End < at {
				t.Fatalf("tensor %q at [%d, %d) after %d", x.Name, x.Begin, x.End, at)
			}
			at = x.End
		}
		if at != data {
			t.Fatalf("tensors end at %d of %d", at, data)
		}
		again, err := h.Encode()
		if err != nil {
			t.Fatalf("encode what was parsed: %v", err)
		}
		back, err := safetensors.Parse(again, h.DataStart+data)
		if err != nil {
			t.Fatalf("parse what was encoded: %v", err)
		}
		if len(back.Tensors) != len(h.Tensors) {
			t.Fatalf("%d tensors became %d", len(h.Tensors), len(back.Tensors))
		}
	})
}
