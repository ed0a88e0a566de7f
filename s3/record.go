package s3

import (
	"encoding/json"
	"fmt"

	"github.com/versity/versitygw/s3response"

	"github.com/morainefs/moraine"
)

// recordXattr is the extended attribute that holds an object's record.
// docs/formats/s3-record.md describes the format.
const recordXattr = "user.moraine.s3"

// recordVersion is the version of records that this build writes.
const recordVersion = 1

// maxRecord is the longest record. S3 allows 2 KiB of metadata, plus tags, headers
// and the list of parts.
const maxRecord = 32 << 10

// record is what an object has besides its bytes. Files made through other
// interfaces have none, which equals an empty one.
type record struct {
	Version            int               `json:"version"`
	ContentType        string            `json:"content_type,omitempty"`
	ContentEncoding    string            `json:"content_encoding,omitempty"`
	ContentDisposition string            `json:"content_disposition,omitempty"`
	ContentLanguage    string            `json:"content_language,omitempty"`
	CacheControl       string            `json:"cache_control,omitempty"`
	Expires            string            `json:"expires,omitempty"`
	Redirect           string            `json:"redirect,omitempty"`
	Metadata           map[string]string `json:"metadata,omitempty"`
	Tags               map[string]string `json:"tags,omitempty"`
	// Directory says why a directory exists. It is empty for files, and for
	// directories made through other interfaces.
	Directory string `json:"directory,omitempty"`
	// Generation is the content that the fields below describe; they are invalid
	// for any other.
	Generation uint64    `json:"generation,omitempty"`
	Checksum   *checksum `json:"checksum,omitempty"`
	// Parts are the lengths of the parts of a multipart upload, in order.
	Parts []partRun `json:"parts,omitempty"`
	// Upload is the multipart upload that made the object.
	Upload string `json:"upload,omitempty"`
	// Key and Created are set for an unfinished upload. Created is by the wall
	// clock, in nanoseconds.
	Key     string `json:"key,omitempty"`
	Created int64  `json:"created,omitempty"`
}

const (
	dirImplied = "implied" // made for a key below it; removed with the last one
	dirObject  = "object"  // put as a key that ends in a slash
)

// partRun is a run of parts of one length.
type partRun struct {
	Bytes int64 `json:"bytes"`
	Count int   `json:"count"`
}

// encode returns the record as stored.
func (r *record) encode() ([]byte, error) {
	r.Version = recordVersion
	data, err := json.Marshal(r)
	if err == nil && len(data) > maxRecord {
		err = &moraine.Error{Op: "s3", Kind: moraine.TooLarge, Err: fmt.Errorf("object record of %d bytes exceeds %d: use less metadata", len(data), maxRecord)}
	}
	return data, err
}

// decodeRecord decodes a stored record. A newer version is an error.
func decodeRecord(data []byte) (record, error) {
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return record{}, &moraine.Error{Op: "s3", Ref: recordXattr, Kind: moraine.Corrupt, Err: err}
	}
	if r.Version != recordVersion {
		return record{}, &moraine.Error{Op: "s3", Ref: recordXattr, Kind: moraine.NewerFormat, Err: fmt.Errorf("version %d", r.Version)}
	}
	return r, nil
}

// defaultType is the type of an object without one.
const defaultType = "binary/octet-stream"

// dirType is the type of a directory.
const dirType = "application/x-directory"

// mediaType is the object's content type.
func (o *object) mediaType() string {
	switch {
	case o.isDir():
		return dirType
	case o.record.ContentType != "":
		return o.record.ContentType
	}
	return defaultType
}

// current reports whether the record describes the content that the object has.
func (o *object) current() bool {
	return o.record.Generation != 0 && o.record.Generation == uint64(o.attr.Generation())
}

// checksums returns the object's checksum in the form of replies, or none if it is
// unknown.
func (o *object) checksums() s3response.Checksum {
	if !o.current() || o.record.Checksum == nil {
		return s3response.Checksum{}
	}
	return o.record.Checksum.reply()
}
