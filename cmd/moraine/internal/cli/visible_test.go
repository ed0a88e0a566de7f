package cli

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
)

// An administrator sees names that users chose, in tables, lines and errors. None of these
// has a character on which a terminal acts, or a line that the name begins.
func TestNamesDoNotActOnTerminals(t *testing.T) {
	const name = "a\x1b]0;owned\x07\x1b[2J\nhealth: good\r\u009b1m\u202egpj\u2028\x7f\xff"
	const shown = `a\x1b]0;owned\a\x1b[2J\nhealth: good\r\u009b1m\u202egpj\u2028\x7f\xff`
	require.Equal(t, shown, Visible(name))
	require.Equal(t, "ordinary ñ 名前\uFFFD", Visible("ordinary ñ 名前\uFFFD"))

	var out bytes.Buffer
	env := &Env{Out: &out, Err: &out}
	env.Note("%s of %v: %v", name, Location{Path: name}, errors.Join(errors.New("x"), errors.New("y")))
	PrintTable(&out, table.Row{"path", "error"}, []table.Row{{name, errors.New(name)}, {"b", 7}})
	for _, line := range ErrorLines(&moraine.Error{Op: "remove", Ref: name, Kind: moraine.NotFound, Err: errors.New(name)}) {
		out.WriteString(line + "\n")
	}
	(*Bar)(nil).Log(&out, name)
	text := out.String()
	require.Contains(t, text, shown)
	require.Contains(t, text, ": x; y\n")
	for _, line := range strings.Split(text, "\n") {
		require.Equal(t, line, Visible(line), "a line acts on the terminal")
		require.False(t, strings.HasPrefix(line, "health: good"))
	}
}
