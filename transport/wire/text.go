package wire

import (
	"strings"
	"unicode/utf8"
)

// Text returns s as a string field of a message can carry it: valid UTF-8, of most bytes
// and "..." at most. A message with any other string cannot be encoded, so that whatever
// quotes a store, a file system or an operator passes through here: an error text must not
// keep a heartbeat from being sent.
func Text(s string, most int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most] + "..."
}

// MaxText is how long the text of an error is at most that travels.
const MaxText = 4096
