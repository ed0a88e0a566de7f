// Package objectkey names objects after files. The key of an object in a bucket
// is the path of its file, so that any S3 client finds it. Characters that a
// key cannot have are escaped. docs/formats/object-keys.md describes the
// format.
//
// All functions are pure: the metadata service, movers and commands must compute
// the same key for the same path, for ever. One path through the package: a mover
// calls Of for the key of a file, and Path turns the key back into the file's path.
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
	// MaxName is the length of the longest name between slashes, in bytes: stores
	// that keep objects as files accept no longer one.
	MaxName = 255
	// MaxPrefix is the length of the longest prefix of a tier, in bytes.
	MaxPrefix = 512

	// own is Moraine's own directory below the prefix.
	own = ".moraine"
	// temporary is the own directory of versitygw, the local bucket's server.
	temporary = ".sgwtmp"
)

// Of returns the key of the file at path, below prefix (empty for none, otherwise
// without slashes at its ends). It ignores slashes at the ends of path, and empty
// names in it. Two different paths never have the same key.
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

// Kept returns the key to which an object moves when another object needs the key
// of its path. It contains the cluster's UUID, since clusters that share a bucket
// number their objects alike.
func Kept(prefix string, cluster []byte, object uint64) string {
	return join(prefix, fmt.Sprintf("%s/kept/%x/%016x", own, cluster, object))
}

// Path returns the path of the file that key is named after, without a leading
// slash. ok is false if key is below another prefix, or is no key that Of returns:
// a foreign object. It is also false for Moraine's own keys: kept objects, and
// those whose path is too long to be a key.
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
	// A key that Of would write differently (lower-case digits, needless escapes,
	// empty names) is foreign.
	return path, path != "" && Of(prefix, path) == key
}

func join(prefix, rest string) string {
	if prefix == "" {
		return rest
	}
	return prefix + "/" + rest
}

// escape escapes one name. first says whether it is the name directly below the
// prefix.
func escape(name string, first bool) string {
	switch {
	case name == "." || name == "..":
		return strings.ReplaceAll(name, ".", "%2E")
	case first && (name == own || strings.HasPrefix(name, temporary)):
		return "%2E" + plain(name[1:])
	}
	return plain(name)
}

// plain escapes byte by byte what XML, or a store, does not accept.
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
