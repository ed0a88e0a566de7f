package pickle

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var limits = Limits{Bytes: 1 << 20, Values: 1000}

func golden(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	return b
}

// TestPlainValues: a pickle of Python's own gives the values that were in it. testdata/make.py wrote
// the files.
func TestPlainValues(t *testing.T) {
	v, err := Parse(golden(t, "plain.4"), limits)
	require.NoError(t, err)
	items := v.(*List).Items
	require.Equal(t, []any{nil, true, false, int64(1), int64(-1), int64(255), int64(65536), int64(1) << 40, -int64(1) << 40, 1.5, "é", []byte("ab"),
		Tuple{int64(1), int64(2), int64(3), int64(4)}}, items[:13])
	set, ok := items[13].(*Dict).Get("k")
	require.True(t, ok)
	require.ElementsMatch(t, []any{int64(1), int64(2)}, set.(*List).Items)
	require.Equal(t, []any{int64(3)}, items[14].(*List).Items)
}

// TestMetadataOfTorch: the metadata of torch.distributed.checkpoint reads the same in each protocol.
func TestMetadataOfTorch(t *testing.T) {
	for _, p := range []string{"0", "2", "4", "5"} {
		v, err := Parse(golden(t, "dcp.metadata."+p), limits)
		require.NoError(t, err, p)
		root := v.(*Object)
		class := root.Class
		if g, ok := class.(Global); ok && g.Name == "_reconstructor" { // protocol 0
			class = root.Args[0]
		}
		require.Equal(t, Global{"torch.distributed.checkpoint.metadata", "Metadata"}, class, p)
		storage, ok := root.Fields().Get("storage_data")
		require.True(t, ok)
		require.Len(t, storage.(*Dict).Values, 5)
		last := storage.(*Dict).Values[4].(*Object).Fields()
		path, _ := last.Get("relative_path")
		offset, _ := last.Get("offset")
		require.Equal(t, "__0_0.distcp", path)
		require.Equal(t, int64(800), offset)
	}
}

// TestHostilePickles: nothing runs, nothing grows past its limits, and no prefix is a whole pickle.
func TestHostilePickles(t *testing.T) {
	v, err := Parse([]byte("cos\nsystem\n(S'id'\ntR."), limits)
	require.ErrorContains(t, err, "opcode")
	require.Nil(t, v)
	v, err = Parse([]byte("cos\nsystem\n(Vid\ntR."), limits)
	require.NoError(t, err)
	require.Equal(t, &Object{Class: Global{"os", "system"}, Args: Tuple{"id"}}, v)
	for what, in := range map[string]string{
		"a persistent reference": "Pid\n.", "an extension": "\x82\x01.", "an instance of old": "(ios\nsystem\n.", "a buffer": "\x97.",
		"nothing": "", "only a stop": ".", "two values": "NN.", "bytes after it": "N.N", "an unknown protocol": "\x80\x06N.",
		"a text longer than the file": "X\xff\xff\xff\xffa.", "an 8 byte length": "\x8d\xff\xff\xff\xff\xff\xff\xff\xffa.",
		"a number of 9 bytes": "\x8a\x09aaaaaaaaa.", "a pop below a mark": "N(0.", "no mark": "Nt.", "nothing remembered": "h\x01.",
		"a state of a list": "]}b.", "an append to a number": "K\x01K\x02a.", "an odd dictionary": "(K\x01d.", "an open mark": "(N.",
		"arguments of no tuple": "cos\nsystem\nNR.", "a class that is no text": "K\x01K\x02\x93.",
	} {
		_, err := Parse([]byte(in), limits)
		require.Error(t, err, what)
	}
	var large *TooLargeError
	for what, in := range map[string]string{
		"values": strings.Repeat("]", 1001) + ".", "items": strings.Repeat("N", 8001) + ".", "bytes": "N." + strings.Repeat("N", 1<<20),
		"copies": "]" + strings.Repeat("2", 9000) + ".",
	} {
		_, err := Parse([]byte(in), limits)
		require.True(t, errors.As(err, &large), what)
	}
	whole := golden(t, "dcp.metadata.4")
	for n := range whole {
		_, err := Parse(whole[:n], limits)
		require.Error(t, err, "the first %d bytes", n)
	}
	// A list that contains itself is a value as others.
	v, err = Parse([]byte("]q\x00h\x00a."), limits)
	require.NoError(t, err)
	require.Same(t, v, v.(*List).Items[0])
}

// FuzzParse: no bytes make Parse fail in another way than with an error.
func FuzzParse(f *testing.F) {
	for _, name := range []string{"plain.4", "dcp.metadata.0", "dcp.metadata.2", "dcp.metadata.4"} {
		f.Add(golden(f, name))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := Parse(b, limits)
		if err != nil {
			require.Nil(t, v)
			return
		}
		if o, ok := v.(*Object); ok {
			o.Fields()
		}
	})
}
