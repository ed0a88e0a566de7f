// Package objectkey names objects after files: the key of an object in a bucket
// is the path of its file, so that any S3 client finds it, and what cannot be
// written in a key is escaped. The format is docs/formats/object-keys.md.
//
// Everything here is pure: the metadata service, movers and commands must come
// to the same key for the same path, for ever.
package objectkey

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	// MaxKey is the length of the longest key, in bytes: that of S3.
	MaxKey = 1024
	// MaxName is the length of the longest name between slashes, in bytes:
	// stores that keep objects as files take no longer one.
	MaxName = 255
	// MaxPrefix is the length of the longest prefix, in bytes, that a tier may
	// have.
	MaxPrefix = 512

	// own is the directory below the prefix that Moraine keeps for itself.
	own = ".moraine"
	// temporary is what versitygw, the local bucket's server, keeps for itself.
	temporary = ".sgwtmp"
)

// Of returns the key of the file at path, below prefix (empty for none, else
// without slashes at its ends). Slashes at the ends of path, and empty names in
// it, do not count. Two different paths never have the same key.
func Of(prefix, path string) string {
	names := strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
	long := false
	escaped := make([]string, len(names))
	for i, name := range names {
		escaped[i] = escape(name, i == 0)
		long = long || len(escaped[i]) > MaxName
	}
	key := join(prefix, strings.Join(escaped, "/"))
	if long || len(key) > MaxKey {
		sum := sha256.Sum256([]byte(strings.Join(names, "/")))
		return join(prefix, own+"/long/"+hex.EncodeToString(sum[:]))
	}
	return key
}

// Kept returns the key at which an object of a cluster, by its UUID, stays whose path is
// needed for another. Clusters that share a bucket number their objects alike.
func Kept(prefix string, cluster []byte, object uint64) string {
	return join(prefix, fmt.Sprintf("%s/kept/%x/%016x", own, cluster, object))
}

// Path returns the path of the file that key is named after, without a slash
// before it. ok is false where key is below another prefix, is one of Moraine's
// own (kept objects, and those whose path is too long to be a key), or is no key
// that Of gives: an object that somebody else has put there.
func Path(prefix, key string) (path string, ok bool) {
	rest := key
	if prefix != "" {
		if rest, ok = strings.CutPrefix(key, prefix+"/"); !ok {
			return "", false
		}
	}
	var b strings.Builder
	for i := 0; i < len(rest); i++ {
		if rest[i] != '%' {
			b.WriteByte(rest[i])
			continue
		}
		if i+2 >= len(rest) {
			return "", false
		}
		n, err := strconv.ParseUint(rest[i+1:i+3], 16, 8)
		if err != nil {
			return "", false
		}
		b.WriteByte(byte(n))
		i += 2
	}
	path = b.String()
	// What Of would write otherwise (lower-case digits, needless escapes, empty
	// names) is somebody else's.
	return path, path != "" && Of(prefix, path) == key
}

func join(prefix, rest string) string {
	if prefix == "" {
		return rest
	}
	return prefix + "/" + rest
}

// escape writes one name. first is that of the name right below the prefix.
func escape(name string, first bool) string {
	switch {
	case name == "." || name == "..":
		return strings.ReplaceAll(name, ".", "%2E")
	case first && (name == own || strings.HasPrefix(name, temporary)):
		return "%2E" + plain(name[1:])
	}
	return plain(name)
}

// plain escapes byte by byte what XML, or a store, does not take.
func plain(name string) string {
	if !needsEscape(name) {
		return name
	}
	var b strings.Builder
	for i := 0; i < len(name); {
		r, n := utf8.DecodeRuneInString(name[i:])
		if isPlain(r, n) {
			b.WriteString(name[i : i+n])
		} else {
			for _, c := range []byte(name[i : i+n]) {
				fmt.Fprintf(&b, "%%%02X", c)
			}
		}
		i += n
	}
	return b.String()
}

func needsEscape(name string) bool {
	for i := 0; i < len(name); {
		r, n := utf8.DecodeRuneInString(name[i:])
		if !isPlain(r, n) {
			return true
		}
		i += n
	}
	return false
}

// isPlain reports whether a character of n bytes stands for itself.
func isPlain(r rune, n int) bool {
	switch {
	case r == utf8.RuneError && n == 1: // not UTF-8
		return false
	case r < 0x20, r >= 0x7f && r <= 0x9f: // control characters
		return false
	case r == '%', r == '\\':
		return false
	case r == 0xfffe, r == 0xffff: // not in XML
		return false
	}
	return true
}
