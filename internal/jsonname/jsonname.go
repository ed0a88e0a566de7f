// Package jsonname writes names and paths in JSON without loss. A name is any bytes, and a string of
// JSON is Unicode: encoding/json replaces each other byte with U+FFFD, so that two names look alike
// and neither can be opened.
//
// A byte that is not part of valid UTF-8 is written as the escape of the lone surrogate U+DC00 plus
// the byte, such as \udcff. Python reads and writes file names in the same way (surrogateescape):
// os.fsencode of the string that json.loads returns is the name.
//
// One path through it: `moraine ls --json` has entries whose path is a Name; PrintJSON calls
// MarshalJSON.
package jsonname

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Name is a name or path of any bytes.
type Name string

// surrogate is that of byte 0.
const surrogate = 0xdc00

// MarshalJSON implements json.Marshaler.
func (n Name) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(n)) {
		return json.Marshal(string(n))
	}
	out := []byte{'"'}
	for rest := string(n); rest != ""; {
		valid := validPrefix(rest)
		b, err := json.Marshal(rest[:valid])
		if err != nil {
			return nil, err
		}
		out = append(out, b[1:len(b)-1]...)
		if rest = rest[valid:]; rest != "" {
			out = fmt.Appendf(out, `\u%04x`, surrogate+int(rest[0]))
			rest = rest[1:]
		}
	}
	return append(out, '"'), nil
}

// validPrefix is the length of the longest prefix that is valid UTF-8.
func validPrefix(s string) int {
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return len(s)
}

// UnmarshalJSON implements json.Unmarshaler.
func (n *Name) UnmarshalJSON(b []byte) error {
	if at, _ := loneByte(b); at == len(b) {
		return json.Unmarshal(b, (*string)(n))
	}
	var s strings.Builder
	for rest := b[1 : len(b)-1]; ; {
		at, value := loneByte(rest)
		var part string
		if err := json.Unmarshal(slices.Concat([]byte{'"'}, rest[:at], []byte{'"'}), &part); err != nil {
			return err
		}
		s.WriteString(part)
		if at == len(rest) {
			break
		}
		s.WriteByte(value)
		rest = rest[at+len(`\udcff`):]
	}
	*n = Name(s.String())
	return nil
}

// loneByte returns where the first escape of a byte is in b, and the byte. at is len(b) if there is
// none. The second half of a pair of surrogates is none.
func loneByte(b []byte) (at int, value byte) {
	paired := false
	for i := 0; i < len(b); {
		switch unit, ok := escapedUnit(b[i:]); {
		case ok && !paired && unit >= surrogate+0x80 && unit <= surrogate+0xff:
			return i, byte(unit - surrogate)
		case ok:
			paired = !paired && unit >= 0xd800 && unit < surrogate
			i += len(`\udcff`)
		case b[i] == '\\':
			paired = false
			i += 2
		default:
			paired = false
			i++
		}
	}
	return len(b), 0
}

// escapedUnit reads \uXXXX at the beginning of b.
func escapedUnit(b []byte) (uint64, bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	unit, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	return unit, err == nil
}
