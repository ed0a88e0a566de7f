package localstore

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
)

// A file of the store is the bytes of an object or a part, its record in JSON, and
// a footer. See docs/formats/local-object.md.

const (
	footerSize = 16
	// maxRecord limits a record: keys take up to 1 KiB and user metadata up to 2
	// KiB.
	maxRecord = 64 << 10
)

// magic ends each file.
var magic = [8]byte{'M', 'O', 'R', 'A', 'O', 'B', 'J', '1'}

// Record is the description of the bytes in a file.
type Record struct {
	// Key is that of the object; for a part, that of its upload.
	Key string `json:"key"`
	// Size is in bytes.
	Size int64 `json:"size"`
	// CRC is the CRC32C of the bytes, computed as they arrived.
	CRC uint32 `json:"crc32c"`
	// ETag is the MD5 of the bytes, or the MD5 of the parts' MD5s, and the number
	// of parts.
	ETag string `json:"etag"`
	// Modified is the wall time of the change, in nanoseconds.
	Modified int64 `json:"modified"`
	// Headers are returned with the object, Meta is its user metadata.
	Headers map[string]string `json:"headers,omitempty"`
	Meta    map[string]string `json:"meta,omitempty"`
}

// tail returns the bytes after the contents in the file.
func (r *Record) tail() ([]byte, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	if len(b) > maxRecord {
		return nil, &moraine.Error{Op: "localstore", Ref: r.Key, Kind: moraine.TooLarge, Err: fmt.Errorf("record of %d bytes exceeds %d", len(b), maxRecord)}
	}
	n := len(b)
	sum := crc.Sum(b)
	b = binary.LittleEndian.AppendUint32(b, uint32(n))
	b = binary.LittleEndian.AppendUint32(b, sum)
	return append(b, magic[:]...), nil
}

// decodeFooter returns the length and the CRC32C of the record before a footer.
func decodeFooter(b []byte, file int64) (n int64, sum uint32, err error) {
	switch {
	case len(b) != footerSize || [8]byte(b[8:]) != magic:
		return 0, 0, errors.New("no footer")
	case binary.LittleEndian.Uint32(b) > maxRecord || int64(binary.LittleEndian.Uint32(b)) > file-footerSize:
		return 0, 0, fmt.Errorf("record of %d bytes does not fit in a file of %d", binary.LittleEndian.Uint32(b), file)
	}
	return int64(binary.LittleEndian.Uint32(b)), binary.LittleEndian.Uint32(b[4:]), nil
}

// DecodeTail decodes the record at the end of a file; file is its length in bytes.
// tail is the end of the file: all of it, or at least 64 KiB and 16 bytes. It
// returns Corrupt if the record is damaged.
func DecodeTail(tail []byte, file int64) (*Record, error) {
	bad := func(err error) (*Record, error) {
		return nil, &moraine.Error{Op: "localstore", Kind: moraine.Corrupt, Err: err}
	}
	if len(tail) < footerSize {
		return bad(fmt.Errorf("%d bytes are too few for an object file", len(tail)))
	}
	at := len(tail) - footerSize
	n, sum, err := decodeFooter(tail[at:], file)
	if err != nil {
		return bad(err)
	}
	if n > int64(at) {
		return bad(errors.New("record is not in the tail"))
	}
	b := tail[int64(at)-n : at]
	if got := crc.Sum(b); got != sum {
		return bad(fmt.Errorf("record checksum mismatch: CRC32C %08x, want %08x", got, sum))
	}
	r := &Record{}
	if err := json.Unmarshal(b, r); err != nil {
		return bad(err)
	}
	if r.Size < 0 || r.Size != file-footerSize-n {
		return bad(fmt.Errorf("record says %d bytes, the file has %d", r.Size, file-footerSize-n))
	}
	return r, nil
}
