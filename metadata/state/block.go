package state

import (
	"crypto/sha256"

	"github.com/morainefs/moraine"
)

// blockRanks is how many ranks one block of a step counts: a step of many ranks
// is known to be complete, and its missing ones are found, without reading a
// row for each.
const blockRanks = 1024

// block counts the sealed ranks of blockRanks consecutive ones.
type block struct {
	sealed []byte // a bit for each
	digest []byte // of all of them, once they have sealed
}

func (b *block) encode() []byte { return putBytes(putBytes([]byte{partVersion}, b.sealed), b.digest) }

func (b *block) decode(value []byte) error {
	d := dec{b: value}
	d.version(partVersion)
	b.sealed, b.digest = d.bytes(), d.bytes()
	return d.end("block of a step")
}

func (v *view) stepBlock(s *step, n uint32) (*block, error) {
	b := &block{}
	value, ok, err := v.r.Get(v.k.stepBlock(s.id, n))
	if err != nil {
		return nil, err
	}
	if ok {
		if err := b.decode(value); err != nil {
			return nil, err
		}
	}
	want := (s.blockLen(n) + 7) / 8
	if b.sealed == nil {
		b.sealed = make([]byte, want)
	}
	if len(b.sealed) != int(want) {
		return nil, &moraine.Error{Op: "block of a step", Ref: s.id.String(), Kind: moraine.Corrupt}
	}
	return b, nil
}

// blocks is how many blocks a step has, and blockLen how many ranks are in one.
func (s *step) blocks() uint32           { return (s.world + blockRanks - 1) / blockRanks }
func (s *step) blockLen(n uint32) uint32 { return min(blockRanks, s.world-n*blockRanks) }

// countSeal notes that a rank has sealed; when its block is complete, the
// block's digest is made. The rank's part is written already.
func (m *Machine) countSeal(t *tx, s *step, rank uint32) error {
	n := rank / blockRanks
	b, err := t.stepBlock(s, n)
	if err != nil {
		return err
	}
	b.sealed[rank%blockRanks/8] |= 1 << (rank % 8)
	complete := true
	for i := range s.blockLen(n) {
		complete = complete && b.sealed[i/8]&(1<<(i%8)) != 0
	}
	if complete {
		if b.digest, err = t.blockDigest(s, n); err != nil {
			return err
		}
	}
	t.put(t.k.stepBlock(s.id, n), b.encode())
	return nil
}

// blockDigest is the SHA-256 of the digests of a block's parts, by rank.
func (v *view) blockDigest(s *step, n uint32) ([]byte, error) {
	h := sha256.New()
	var bad error
	lo := v.k.part(s.id, n*blockRanks)
	hi := v.k.part(s.id, n*blockRanks+s.blockLen(n))
	ranks := uint32(0)
	err := v.r.Scan(lo, hi, func(_, value []byte) bool {
		var p part
		if bad = p.decode(value); bad != nil {
			return false
		}
		h.Write(p.digest[:])
		ranks++
		return true
	})
	if err == nil {
		err = bad
	}
	if err == nil && ranks != s.blockLen(n) {
		err = &moraine.Error{Op: "digest of a step", Ref: s.id.String(), Kind: moraine.Corrupt}
	}
	return h.Sum(nil), err
}

// missingRanks returns the ranks that have not sealed, MaxMissing at most.
func (v *view) missingRanks(s *step) ([]uint32, error) {
	var out []uint32
	if s.sealed == s.world {
		return nil, nil
	}
	for n := range s.blocks() {
		b, err := v.stepBlock(s, n)
		if err != nil {
			return nil, err
		}
		for i := range s.blockLen(n) {
			if b.sealed[i/8]&(1<<(i%8)) == 0 {
				if out = append(out, n*blockRanks+i); len(out) == MaxMissing {
					return out, nil
				}
			}
		}
	}
	return out, nil
}
