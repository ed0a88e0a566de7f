package wire

import (
	"strings"
	"unicode/utf8"
)

// Text returns s as a text for people: valid UTF-8, of at most `most` bytes and "...". A
// string field can hold any bytes, as names of files do. But a text that quotes a store, a
// file system or an operator goes to logs, tables and JSON, and must not fill a heartbeat.
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
