package record

import "errors"

const heightVersion = 1

func DecodeHeight(b []byte) (uint32, error) {
	d := Dec{B: b}
	d.Version(heightVersion)
	height := d.U32()
	if d.Err == nil && height == 0 {
		d.fail(errors.New("a height of 0 is not written"))
	}
	return height, d.End("height")
}

func EncodeHeight(height uint32) []byte {
	return PutUvarint([]byte{heightVersion}, uint64(height))
}
