package schedules_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
)

// blockBytes is the unit of the model: each block of a file names its file, version
// and place, and all its other bytes follow from that.
const blockBytes = 4096

// headBytes is the length of that description in a block; no block is shorter.
const headBytes = 24

const blockMagic = 0x6d6f7261696e6521

// tagOf names a file in its blocks.
func tagOf(seed uint64, path string) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s", seed, path) //nolint:errcheck // a hash takes everything
	return h.Sum64()
}

// fillBlock makes a block, or the beginning of one, of a version of a file.
func fillBlock(p []byte, tag uint64, version uint32, index int64) {
	var b [blockBytes]byte
	binary.LittleEndian.PutUint64(b[0:], blockMagic^tag)
	binary.LittleEndian.PutUint64(b[8:], uint64(index))
	binary.LittleEndian.PutUint64(b[16:], uint64(version))
	x := tag ^ uint64(index)*0x9e3779b97f4a7c15 ^ uint64(version)<<40
	for i := headBytes; i < blockBytes; i += 8 {
		x += 0x9e3779b97f4a7c15
		z := (x ^ x>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		binary.LittleEndian.PutUint64(b[i:], z^z>>31)
	}
	copy(p, b[:])
}

// fill makes the bytes of a version of a file from block first on.
func fill(p []byte, tag uint64, version uint32, first int64) {
	for i := 0; i < len(p); i += blockBytes {
		fillBlock(p[i:min(len(p), i+blockBytes)], tag, version, first+int64(i/blockBytes))
	}
}

// versionsOf returns the version of each block of p, which holds a file's bytes
// from block first on. Any byte that differs from that version is an error.
func versionsOf(p []byte, tag uint64, first int64) ([]uint32, error) {
	var versions []uint32
	var want [blockBytes]byte
	for i := 0; i < len(p); i += blockBytes {
		b, index := p[i:min(len(p), i+blockBytes)], first+int64(i/blockBytes)
		if len(b) < headBytes {
			return nil, fmt.Errorf("block %d: of %d bytes: none is so short", index, len(b))
		}
		version := binary.LittleEndian.Uint64(b[16:])
		fillBlock(want[:], tag, uint32(version), index)
		if !bytes.Equal(b, want[:len(b)]) {
			return nil, fmt.Errorf("block %d: wrong bytes (%s)", index, describe(b, want[:len(b)]))
		}
		versions = append(versions, uint32(version))
	}
	return versions, nil
}

// describe says how a block is wrong.
func describe(got, want []byte) string {
	if len(bytes.TrimLeft(got, "\x00")) == 0 {
		return "all zeros"
	}
	first, differ := -1, 0
	for i := range got {
		if got[i] != want[i] {
			differ++
			if first < 0 {
				first = i
			}
		}
	}
	return fmt.Sprintf("%d of %d differ, from %d on; it begins with %x, and %x would be right", differ, len(got), first, got[:headBytes], want[:headBytes])
}
