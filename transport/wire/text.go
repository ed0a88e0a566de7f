package wire

import (
	"strings"
	"unicode/utf8"
)

// Text returns s as valid content of a string field: valid UTF-8, of at most `most`
// bytes and "...". A message with any other string cannot be encoded. So every
// quote of a store, a file system or an operator passes through here: an error text
// must not prevent a heartbeat.
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

// MaxText is the greatest length of an error text in a message.
const MaxText = 4096
