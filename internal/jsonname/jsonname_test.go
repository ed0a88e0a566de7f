package jsonname_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/jsonname"
)

var names = map[string]string{
	"":                      `""`,
	"plain":                 `"plain"`,
	"é\U0001F600":           `"é😀"`,
	"\xff\xfe":              `"\udcff\udcfe"`,
	"caf\xe9":               `"caf\udce9"`,
	"\xed\xb3\xbf":          `"\udced\udcb3\udcbf"`, // CESU of a lone surrogate
	"a\xffb\"\\\x01é\x80":   `"a\udcffb\"\\\u0001é\udc80"`,
	"\uFFFD is a character": `"� is a character"`,
	`\udcff`:                `"\\udcff"`,
}

func TestNamesSurvive(t *testing.T) {
	for name, want := range names {
		b, err := json.Marshal(struct{ Path jsonname.Name }{jsonname.Name(name)})
		require.NoError(t, err)
		require.Equal(t, `{"Path":`+want+`}`, string(b))
		var back struct{ Path jsonname.Name }
		require.NoError(t, json.Unmarshal(b, &back))
		require.Equal(t, name, string(back.Path))
	}
}

// A pair of escapes is one character, whose second half is no byte.
func TestPairsAreCharacters(t *testing.T) {
	for text, want := range map[string]string{
		`"\ud83d\ude00"`:       "\U0001F600",
		`"\ud83f\udcff"`:       "\U0001FCFF",
		`"\ud83f\udcff\udcff"`: "\U0001FCFF\xff",
		`"\udCE9"`:             "\xe9",
		`"\\\udce9"`:           "\\\xe9",
		`"\udc41"`:             "\uFFFD", // not a byte that needs an escape
		`null`:                 "",
	} {
		var n jsonname.Name
		require.NoError(t, json.Unmarshal([]byte(text), &n), text)
		require.Equal(t, want, string(n), text)
	}
	var n jsonname.Name
	require.Error(t, json.Unmarshal([]byte(`7`), &n))
}

func FuzzName(f *testing.F) {
	for name := range names {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		b, err := json.Marshal(jsonname.Name(name))
		require.NoError(t, err)
		require.NotContains(t, strings.ReplaceAll(string(b), `\\`, ""), `\ufffd`)
		var back jsonname.Name
		require.NoError(t, json.Unmarshal(b, &back))
		require.Equal(t, name, string(back))
	})
}
