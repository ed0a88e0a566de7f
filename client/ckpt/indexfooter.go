package ckpt

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
)

// appendFooter appends the footer to the top, which begins at topOff in the index.
func appendFooter(top []byte, topOff int64) []byte {
	f := make([]byte, footerSize)
	copy(f, indexMagic)
	binary.LittleEndian.PutUint32(f[8:], indexVersion)
	binary.LittleEndian.PutUint64(f[16:], uint64(topOff))
	binary.LittleEndian.PutUint64(f[24:], uint64(len(top)))
	binary.LittleEndian.PutUint32(f[32:], crc.Sum(top))
	binary.LittleEndian.PutUint32(f[footerSize-4:], crc.Sum(f[:footerSize-4]))
	return append(top, f...)
}

// parseFooter returns where the top is. fileSize is the size of the whole index.
func parseFooter(f []byte, fileSize int64) (off, length int64, sum uint32, err error) {
	if len(f) != footerSize || string(f[:8]) != indexMagic {
		return 0, 0, 0, corrupt("the file has no footer of a checkpoint index")
	}
	if crc.Sum(f[:footerSize-4]) != binary.LittleEndian.Uint32(f[footerSize-4:]) {
		return 0, 0, 0, corrupt("the footer does not match its CRC")
	}
	if v := binary.LittleEndian.Uint32(f[8:]); v != indexVersion {
		return 0, 0, 0, &moraine.Error{Op: "read index", Kind: moraine.NewerFormat,
			Err: fmt.Errorf("version %d; this build reads %d", v, indexVersion)}
	}
	o, n := binary.LittleEndian.Uint64(f[16:]), binary.LittleEndian.Uint64(f[24:])
	if n > maxIndexTop || o > math.MaxInt64-n-footerSize || int64(o+n)+footerSize != fileSize {
		return 0, 0, 0, corrupt("the top at [%d, +%d) does not fit a file of %d bytes", o, n, fileSize)
	}
	return int64(o), int64(n), binary.LittleEndian.Uint32(f[32:]), nil
}

func corrupt(format string, args ...any) error {
	return &moraine.Error{Op: "read index", Kind: moraine.Corrupt, Err: fmt.Errorf(format, args...)}
}
