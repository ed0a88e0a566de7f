package record

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// Sum is the running sum of the keyed hashes of all pairs of a partition. It has two lanes of 64
// bits, each a sum mod 2^64 of XXH64 with its own seed. Adding or removing a pair is O(1) and the
// order does not matter, so replicas with the same pairs have the same Sum. It detects divergence,
// not forgery.
//
// Kept answers count only by their key or number. They are encoded protobuf, whose bytes may differ
// between builds.
type Sum [2]uint64

// Seeds of the two lanes. They are part of the format and must never change.
const (
	sumSeed0 = 0x4d6f7261696e6531
	sumSeed1 = 0x73756d206f66206b
)

// Add adds a pair to the sum.
func (s *Sum) Add(key, value []byte) {
	h := pairHash(key, value)
	s[0] += h[0]
	s[1] += h[1]
}

// Remove removes a pair from the sum.
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

// Encode returns the stored value.
func (s Sum) Encode() []byte { return s.fields(encoder(17)).B }

// DecodeSum decodes a running sum.
func DecodeSum(b []byte) (s Sum, err error) {
	err = s.fields(decoder(b)).End("sum")
	return s, err
}

func (s *Sum) fields(c *codec) *codec {
	c.version(sumVersion)
	return s.lanes(c)
}

func (s *Sum) lanes(c *codec) *codec {
	fixed64(c, &s[0])
	fixed64(c, &s[1])
	return c
}

// Replicas detect by marks that their states differ. A Tick makes each replica record its running
// sum, and the next Tick has the proposer's sum for the same entry. A difference never fails the
// command, because a wrong proposer would then stop every correct replica for ever. Instead the
// replica raises Events.Diverged, and its service stops.

// SumMark is a running sum and the log index of the entry before which it was valid.
type SumMark struct {
	Index uint64
	Sum   Sum
}

const sumMarkVersion = 1

// Encode returns the stored value.
func (s SumMark) Encode() []byte { return s.fields(encoder(25)).B }

// DecodeSumMark decodes a mark.
func DecodeSumMark(b []byte) (s SumMark, err error) {
	err = s.fields(decoder(b)).End("sum mark")
	return s, err
}

func (s *SumMark) fields(c *codec) *codec {
	c.version(sumMarkVersion)
	fixed64(c, &s.Index)
	return s.Sum.lanes(c)
}
