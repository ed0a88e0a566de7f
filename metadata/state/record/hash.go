package record

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// Sum is the running sum of the keyed hashes of all pairs of a partition: two
// lanes of 64 bits, each a sum mod 2^64 of XXH64 under a seed of its own.
// Adding and taking away pairs is O(1), and the order of writes does not
// matter, so that replicas that hold the same pairs have the same Sum. It
// finds divergence, not forgery.
//
// Kept answers count with their key or number alone: they are encoded protobuf, whose
// bytes may differ from one build to the next.
type Sum [2]uint64

// Seeds of the two lanes. They are part of the format: never change them.
const (
	sumSeed0 = 0x4d6f7261696e6531
	sumSeed1 = 0x73756d206f66206b
)

// Add counts the pair in.
func (s *Sum) Add(key, value []byte) {
	h := pairHash(key, value)
	s[0] += h[0]
	s[1] += h[1]
}

// Remove takes the pair out.
func (s *Sum) Remove(key, value []byte) {
	h := pairHash(key, value)
	s[0] -= h[0]
	s[1] -= h[1]
}

func pairHash(key, value []byte) Sum {
	if len(key) > 2 {
		switch key[2] {
		case TabAnswer:
			value = nil
		case TabSession:
			value = withoutAnswer(value)
		}
	}
	var d xxhash.Digest
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(len(key)))
	var h Sum
	for i, seed := range [2]uint64{sumSeed0, sumSeed1} {
		d.ResetWithSeed(seed)
		d.Write(n[:])
		d.Write(key)
		d.Write(value)
		h[i] = d.Sum64()
	}
	return h
}

const sumVersion = 1

func (s Sum) Encode() []byte {
	return PutFixed64(PutFixed64(newValue(sumVersion, 17), s[0]), s[1])
}

func DecodeSum(b []byte) (Sum, error) {
	d := Dec{B: b}
	d.Version(sumVersion)
	s := Sum{d.Fixed64(), d.Fixed64()}
	return s, d.End("sum")
}

// Replicas find out that their states differ by marks: a Tick has each note its
// running sum, and the next one brings what its proposer noted. Applying never
// fails for a difference, which would end for ever every replica that is right
// where the proposer is not: it raises Events.Diverged, and the service of that
// replica stops.

// SumMark is a running sum, and the log index of the entry before which it was.
type SumMark struct {
	Index uint64
	Sum   Sum
}

const sumMarkVersion = 1

func (s SumMark) Encode() []byte {
	return PutFixed64(PutFixed64(PutFixed64([]byte{sumMarkVersion}, s.Index), s.Sum[0]), s.Sum[1])
}

func DecodeSumMark(b []byte) (SumMark, error) {
	d := Dec{B: b}
	d.Version(sumMarkVersion)
	s := SumMark{d.Fixed64(), Sum{d.Fixed64(), d.Fixed64()}}
	return s, d.End("sum mark")
}
