package s3

import (
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/versity/versitygw/s3err"

	"github.com/morainefs/moraine"
)

const (
	// maxKey is the longest key, in bytes, as in S3.
	maxKey = 1024
	// maxName is the longest name between two slashes.
	maxName = 255
	// uploadsDir is the directory of a bucket with the parts of unfinished uploads.
	// No key reaches into it.
	uploadsDir = moraine.UploadsDir
)

// objectKey is a checked key: the path of a file or, with a slash at its end, of a
// directory.
type objectKey struct {
	bucket, key string
}

// isDir reports whether the key names a directory.
func (k objectKey) isDir() bool { return strings.HasSuffix(k.key, "/") }

// parseKey checks a key. S3 accepts any string. A path cannot have an empty name,
// "." or "..", or a name of more than 255 bytes.
func parseKey(bucket, key string) (objectKey, error) {
	switch {
	case key == "":
		return objectKey{}, s3err.GetAPIError(s3err.ErrNoSuchKey)
	case len(key) > maxKey:
		return objectKey{}, s3err.GetKeyTooLongErr(int64(len(key)), maxKey)
	case !utf8.ValidString(key):
		return objectKey{}, badKey("the key is not UTF-8")
	case strings.ContainsRune(key, 0):
		return objectKey{}, badKey("the key contains a NUL")
	}
	for i, name := range strings.Split(strings.TrimSuffix(key, "/"), "/") {
		switch {
		case name == "":
			return objectKey{}, badKey("the key begins with a slash, or has two in a row: no file can have that name")
		case name == "." || name == "..":
			return objectKey{}, badKey("the key has %q between slashes: no file can have that name", name)
		case len(name) > maxName:
			return objectKey{}, badKey("the key has %d bytes between two slashes: a file name has at most %d", len(name), maxName)
		case i == 0 && name == uploadsDir:
			return objectKey{}, badKey("%s holds the parts of uploads", uploadsDir)
		}
	}
	return objectKey{bucket: bucket, key: key}, nil
}

func badKey(format string, args ...any) error {
	return s3err.APIError{Code: "InvalidObjectName", Description: fmt.Sprintf(format, args...), HTTPStatusCode: http.StatusBadRequest}
}

// usableBucket reports whether a name can be that of a bucket's directory.
func usableBucket(name string) bool {
	return name != "" && !strings.HasPrefix(name, ".") && len(name) <= maxName &&
		utf8.ValidString(name) && !strings.ContainsAny(name, "/\x00")
}

// properBucket reports whether S3 allows to create a bucket of that name.
func properBucket(name string) bool {
	if len(name) < 3 || len(name) > 63 {
		return false
	}
	digits := true
	for i, c := range []byte(name) {
		edge := i == 0 || i == len(name)-1
		switch {
		case c >= 'a' && c <= 'z':
			digits = false
		case c >= '0' && c <= '9':
		case c == '-' && !edge:
			digits = false
		case c == '.' && !edge && name[i-1] != '.':
		default:
			return false
		}
	}
	return !(digits && strings.Count(name, ".") == 3) // an IP address
}
