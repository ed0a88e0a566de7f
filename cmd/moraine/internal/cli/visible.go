package cli

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/morainefs/moraine/internal/jsonname"
)

// Visible escapes the characters on which a terminal acts. Users choose names: a name must
// not move the cursor, hide the text before it, or begin a line that looks like another
// answer. The exact name is in --json (package jsonname).
func Visible(s string) string {
	if strings.IndexFunc(s, acts) < 0 {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case acts(r) && r != utf8.RuneError:
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		default:
			b.WriteString(s[:n])
		}
		s = s[n:]
	}
	return b.String()
}

// acts reports whether a terminal does more with r than show it. RuneError also stands for a
// byte that is not UTF-8.
func acts(r rune) bool {
	return unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp) || r == utf8.RuneError
}

// visibleArgs applies Visible to the texts and errors among the arguments of a format.
func visibleArgs(args []any) []any {
	out := make([]any, len(args))
	for i, arg := range args {
		out[i] = arg
		switch v := arg.(type) {
		case string:
			out[i] = Visible(v)
		case jsonname.Name:
			out[i] = Visible(string(v))
		case error:
			out[i] = Visible(strings.ReplaceAll(v.Error(), "\n", "; "))
		case fmt.Stringer:
			if s := v.String(); Visible(s) != s {
				out[i] = Visible(s)
			}
		}
	}
	return out
}

// visibleRows applies Visible to the cells of a table.
func visibleRows(rows []table.Row) []table.Row {
	out := make([]table.Row, len(rows))
	for i, row := range rows {
		out[i] = visibleArgs(row)
	}
	return out
}
