package localfiles_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/localfiles"
)

// TestOpenRefuses: what cannot be a part is refused before a byte is saved.
func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	header := func(json string) string { return string([]byte{byte(len(json)), 0, 0, 0, 0, 0, 0, 0}) + json }
	one := header(`{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`) + "x"
	a, b := write("a.safetensors", one), write("b.safetensors", one)
	var many []string
	for i := range 63 {
		many = append(many, write("f"+string(rune('A'+i)), ""))
	}
	for name, paths := range map[string][]string{
		"its tensor \"w\" is in":  {a, b},
		"its name \"a.safe":       {a, a},
		"not a regular file":      {dir},
		"the header is cut off":   {write("cut.safetensors", one[:20])},
		"not a safetensors file":  {write("short.safetensors", "x")},
		"63 files besides":        many,
		"they must begin at 0":    {write("gap.safetensors", header(`{"w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`)+"xy")},
		"the data section has 26": {write("long.safetensors", one+"abcdefghijklmnopqrstuvwxy")},
	} {
		_, err := localfiles.Open(paths)
		require.ErrorIs(t, err, moraine.InvalidArgument, name)
		require.ErrorContains(t, err, name)
	}
	for dtype, says := range map[string]string{
		"F4": "type F4 is not supported yet, its elements are parts of bytes", "F6_E2M3": "not supported yet", "F3": `unknown type "F3"`,
	} {
		_, err := localfiles.Open([]string{write(dtype+".safetensors", header(`{"w":{"dtype":"`+dtype+`","shape":[4],"data_offsets":[0,2]}}`)+"xy")})
		require.ErrorIs(t, err, moraine.InvalidArgument, dtype)
		require.ErrorContains(t, err, says)
		require.NotContains(t, err.Error(), "not a safetensors file", "it may be a good one")
	}
	_, err := localfiles.Open([]string{filepath.Join(dir, "none")})
	require.ErrorIs(t, err, os.ErrNotExist)
	f, err := localfiles.Open(append(many[:62], a))
	require.NoError(t, err)
	f.Close()
}

// TestPaths: names stay, unless two ranks saved files of one name.
func TestPaths(t *testing.T) {
	require.Equal(t, []string{"a", "b"}, localfiles.Paths([]localfiles.Original{{Name: "a"}, {Rank: 1, Name: "b"}}))
	require.Equal(t, []string{"rank-00000/a", "rank-00000/b", "rank-00001/a"},
		localfiles.Paths([]localfiles.Original{{Name: "a"}, {Name: "b"}, {Rank: 1, Name: "a"}}))
}
