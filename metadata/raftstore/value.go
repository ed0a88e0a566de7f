package raftstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/morainefs/moraine/internal/crc"
)

// Every value of the state has its own checksum: CRC32C of its key and its
// bytes. It is computed when the state machine writes the value, and compared
// at each read. It stays with the value everywhere: in the layers, the records,
// and pebble, whose values end in it. Pebble compares the checksum of a block
// only when it reads the block from disk, not while the block is in its cache.
// Its table in memory has no checksum. Without ours, a bit that flips there
// would change a size, an extent or the CRC of a chunk, and would be served.

// sumBytes is the additional length of a value in pebble: its checksum, little-endian.
const sumBytes = 4

func valueSum(key, value []byte) uint32 { return crc.Update(crc.Sum(key), value) }

// sealValue appends to dst the bytes that pebble stores for a value.
func sealValue(dst, value []byte, sum uint32) []byte {
	return binary.LittleEndian.AppendUint32(append(dst, value...), sum)
}

// openValue returns the value in pebble's bytes for key, and its checksum after comparing it. The
// value is a part of stored.
func openValue(key, stored []byte) (value []byte, sum uint32, err error) {
	n := len(stored) - sumBytes
	if n < 0 {
		return nil, 0, damagedValue(key, "%d bytes, too few for its checksum", len(stored))
	}
	value, sum = stored[:n:n], binary.LittleEndian.Uint32(stored[n:])
	return value, sum, checkValue(key, value, sum)
}

// checkValue compares a value with its checksum.
func checkValue(key, value []byte, sum uint32) error {
	if got := valueSum(key, value); got != sum {
		return damagedValue(key, "checksum mismatch: want %08x, got %08x", sum, got)
	}
	return nil
}

func damagedValue(key []byte, format string, args ...any) error {
	return corruptf("value of key %x in the state of this server, in memory or on disk: %s", key, fmt.Sprintf(format, args...))
}

// readValue returns a copy of r's value for key, and its checksum after comparing it; false if
// there is none.
func readValue(r pebble.Reader, key []byte) (value []byte, sum uint32, ok bool, err error) {
	stored, closer, err := r.Get(key)
	if err == pebble.ErrNotFound {
		return nil, 0, false, nil
	}
	if err != nil {
		return nil, 0, false, err
	}
	defer func() { err = errors.Join(err, closer.Close()) }()
	value, sum, err = openValue(key, stored)
	return bytes.Clone(value), sum, err == nil, err
}
