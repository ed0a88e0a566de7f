package adopted

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNames: a path and its name in a step are each other's reverse, and no name leads elsewhere.
func TestNames(t *testing.T) {
	for path, name := range map[string]string{
		".metadata":              ".metadata",
		"__0_0.distcp":           "__0_0.distcp",
		"mp_rank_00/a%b.pt":      "mp_rank_00%2Fa%25b.pt",
		"a/b/c":                  "a%2Fb%2Fc",
		"index.moraine":          "%69ndex.moraine",
		"sub/index.moraine":      "sub%2Findex.moraine",
		strings.Repeat("x", 255): strings.Repeat("x", 255),
	} {
		got, err := Name(path)
		require.NoError(t, err)
		require.Equal(t, name, got)
		back, err := Path(got)
		require.NoError(t, err)
		require.Equal(t, path, back)
	}
	_, err := Name(strings.Repeat("d/", 90))
	require.Error(t, err)
	for _, bad := range []string{"", "a%2F", "..%2Fx", "a%2F..%2Fb", ".", "..", "%2Fetc", "a/b", "%41", "%", "%2", "%zz", "%2f", "index.moraine", "a%00", "a%2F%2Fb"} {
		_, err := Path(bad)
		require.Error(t, err, bad)
	}
}

// FuzzPath: what Path accepts, Name gives back, and it stays below the directory.
func FuzzPath(f *testing.F) {
	f.Add("a%2Fb")
	f.Add("%69ndex.moraine")
	f.Fuzz(func(t *testing.T, name string) {
		path, err := Path(name)
		if err != nil {
			return
		}
		require.False(t, strings.HasPrefix(path, "/"))
		require.NotContains(t, strings.Split(path, "/"), "..")
		again, err := Name(path)
		require.NoError(t, err)
		require.Equal(t, name, again)
	})
}

// TestDigestCoversNamesAndSizes: no two lists of files have one digest.
func TestDigestCoversNamesAndSizes(t *testing.T) {
	seen := map[[32]byte]bool{}
	for _, files := range [][]File{nil, {{"a", 1}}, {{"a", 2}}, {{"b", 1}}, {{"a", 1}, {"b", 1}}, {{"b", 1}, {"a", 1}}, {{"ab", 1}}} {
		require.False(t, seen[Digest(files)])
		seen[Digest(files)] = true
	}
}
