package llama

import (
	"encoding/binary"
	"hash/fnv"
	"math/bits"
)

// Fill writes the bytes [off, off+len(dst)) of the tensor's content into dst. They
// depend only on seed, name and offset, and do not compress.
func Fill(dst []byte, seed uint64, name string, off int64) {
	key := keyOf(seed, name)
	n := uint64(off) / 8
	if skip := int(off % 8); skip > 0 && len(dst) > 0 {
		var w [8]byte
		binary.LittleEndian.PutUint64(w[:], word(key, n))
		dst = dst[copy(dst, w[skip:]):]
		n++
	}
	for len(dst) >= 32 {
		d := dst[:32:32]
		binary.LittleEndian.PutUint64(d[0:], word(key, n))
		binary.LittleEndian.PutUint64(d[8:], word(key, n+1))
		binary.LittleEndian.PutUint64(d[16:], word(key, n+2))
		binary.LittleEndian.PutUint64(d[24:], word(key, n+3))
		dst, n = dst[32:], n+4
	}
	for len(dst) > 0 {
		var w [8]byte
		binary.LittleEndian.PutUint64(w[:], word(key, n))
		dst = dst[copy(dst, w[:]):]
		n++
	}
}

// Differs returns the offset of the first byte of p that differs from Fill's, or
// -1. p is the content from off on.
func Differs(p []byte, seed uint64, name string, off int64) int64 {
	var want [4096]byte
	for at := 0; at < len(p); {
		n := min(len(want), len(p)-at)
		Fill(want[:n], seed, name, off+int64(at))
		if string(want[:n]) != string(p[at:at+n]) {
			for i := range n {
				if want[i] != p[at+i] {
					return off + int64(at+i)
				}
			}
		}
		at += n
	}
	return -1
}

func keyOf(seed uint64, name string) uint64 {
	h := fnv.New64a()
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], seed)
	h.Write(b[:])
	h.Write([]byte(name))
	return h.Sum64()
}

// word is the n-th word of a stream: a multiplication whose halves are folded,
// twice, over a counter.
func word(key, n uint64) uint64 {
	x := (n + key) * 0x9e3779b97f4a7c15
	hi, lo := bits.Mul64(x^key, x|1)
	hi, lo = bits.Mul64(hi^lo^0xd1342543de82ef95, 0xaef17502108ef2d9)
	return hi ^ lo
}
