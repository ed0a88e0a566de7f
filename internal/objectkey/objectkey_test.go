package objectkey_test

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/objectkey"
)

// golden pairs are never changed, only added to.
func golden(t testing.TB) (pairs [][3]string) {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "keys.txt"))
	require.NoError(t, err)
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		require.Len(t, fields, 3, lines.Text())
		var pair [3]string
		for i, field := range fields {
			pair[i], err = strconv.Unquote(field)
			require.NoError(t, err, lines.Text())
		}
		pairs = append(pairs, pair)
	}
	require.NotEmpty(t, pairs)
	return pairs
}

func TestGoldenKeys(t *testing.T) {
	for _, p := range golden(t) {
		prefix, path, key := p[0], p[1], p[2]
		require.Equal(t, key, objectkey.Of(prefix, path), "%q", path)
		back, ok := objectkey.Path(prefix, key)
		if strings.Contains(key, ".moraine/long/") {
			require.False(t, ok)
			continue
		}
		require.True(t, ok, key)
		require.Equal(t, path, back)
	}
}

func TestKeysOfOthersHaveNoPath(t *testing.T) {
	for _, key := range []string{"", "p", "px/a", "p/", "p//a", "p/a/", "p/%", "p/%4", "p/%41", "p/%0a", "p/%zz", "p/a%2Fb",
		"p/.moraine/kept/636c7573746572206f66207465737473/0000000000000001", "p/.moraine/long/00", "p/.moraine", "p/a/./b", "p/..", "p/a\x01"} {
		_, ok := objectkey.Path("p", key)
		require.False(t, ok, "%q", key)
	}
}

func TestKeptObjectsHaveKeysOfTheirOwn(t *testing.T) {
	a, b := []byte("cluster of tests"), []byte("cluster of other")
	const name = "636c7573746572206f66207465737473"
	require.Equal(t, "p/.moraine/kept/"+name+"/00000000000000ff", objectkey.Kept("p", a, 255))
	require.Equal(t, ".moraine/kept/"+name+"/00000000000000ff", objectkey.Kept("", a, 255))
	require.NotEqual(t, objectkey.Kept("p", a, 255), objectkey.Kept("p", b, 255))
	require.NotEqual(t, objectkey.Kept("p", a, 255), objectkey.Of("p", ".moraine/kept/"+name+"/00000000000000ff"))
}

func TestSlashesDoNotCount(t *testing.T) {
	require.Equal(t, objectkey.Of("p", "a/b"), objectkey.Of("p", "//a///b/"))
}

func FuzzPath(f *testing.F) {
	for _, p := range golden(f) {
		f.Add(p[0], p[1])
		f.Add(p[0], p[2])
	}
	f.Fuzz(func(t *testing.T, prefix, text string) {
		if len(prefix) > objectkey.MaxPrefix {
			return
		}
		// As a path: the result is a valid key, and leads back.
		path := strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '/' }), "/")
		key := objectkey.Of(prefix, path)
		rest := key
		if prefix != "" {
			var ok bool
			rest, ok = strings.CutPrefix(key, prefix+"/")
			require.True(t, ok)
		}
		require.LessOrEqual(t, len(key), objectkey.MaxKey)
		require.True(t, utf8.ValidString(rest), "%q", rest)
		for _, name := range strings.Split(rest, "/") {
			require.LessOrEqual(t, len(name), objectkey.MaxName)
			require.NotContains(t, []string{".", ".."}, name)
		}
		back, ok := objectkey.Path(prefix, key)
		require.Equal(t, path != "" && !strings.HasPrefix(rest, ".moraine/long/"), ok, "%q", key)
		if ok {
			require.Equal(t, path, back)
		}
		// As a key: its path leads back to it.
		if path, ok := objectkey.Path(prefix, text); ok {
			require.Equal(t, text, objectkey.Of(prefix, path))
		}
	})
}

// TestWriteGolden prints lines for testdata/keys.txt.
func TestWriteGolden(t *testing.T) {
	if os.Getenv("MORAINE_PRINT_GOLDEN") == "" {
		t.Skip("MORAINE_PRINT_GOLDEN is not set")
	}
	for _, p := range [][2]string{
		{"", "a"}, {"p", "a"}, {"p/q", "runs/llama/attempt-1/step-100/part-00000.safetensors"},
		{"p", ".moraine"}, {"p", ".moraine/x"}, {"p", "a/.moraine"}, {"p", ".moraine2"}, {"", ".sgwtmp/x"}, {"", ".git/config"},
		{"p", "100%"}, {"p", "a%41"}, {"p", "new\nline"}, {"p", "tab\tand\x7f"}, {"p", "\xff\xfe"}, {"p", "grün/日本語/😀"}, {"p", "a\u0085b"},
		{"p", "a\ufffe\uffff\ufffd"}, {"p", "back\\slash"}, {"p", "a b+c&d=e?f#g"}, {"p", "./../..."},
		{"p", strings.Repeat("n", 255)}, {"p", strings.Repeat("\x01", 85)}, {"p", strings.Repeat("\x01", 86)},
		{"p", strings.Repeat("d234567890/", 92) + "1234567890"}, {"p", strings.Repeat("d234567890/", 92) + "12345678901"},
	} {
		fmt.Printf("%s %s %s\n", quote(p[0]), quote(p[1]), quote(objectkey.Of(p[0], p[1])))
	}
}

func quote(s string) string { return strings.ReplaceAll(strconv.QuoteToASCII(s), " ", `\x20`) }
