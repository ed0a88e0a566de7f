package ckpt

import (
	"crypto/sha256"

	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
)

// stepBlock returns block n of a step; an empty block if no rank of it has sealed.
func stepBlock(v *kvtx.View, s *record.Step, n uint32) (*record.Block, error) {
	b := &record.Block{}
	value, ok, err := v.R.Get(v.K.StepBlock(s.Id, n))
	if err != nil {
		return nil, err
	}
	if ok {
		if err := b.Decode(value); err != nil {
			return nil, err
		}
	}
	want := (s.BlockLen(n) + 7) / 8
	if b.Sealed == nil {
		b.Sealed = make([]byte, want)
	}
	if len(b.Sealed) != int(want) {
		return nil, kvtx.Corrupt("block of a step", s.Id.String(), "block %d has %d bytes of sealed ranks, want %d", n, len(b.Sealed), want)
	}
	return b, nil
}

// countSeal records that a rank has sealed. When its block is complete it computes the block's
// digest. The rank's part must already be written.
func countSeal(t *kvtx.Tx, s *record.Step, rank uint32) error {
	n := rank / record.BlockRanks
	b, err := stepBlock(&t.View, s, n)
	if err != nil {
		return err
	}
	b.Sealed[rank%record.BlockRanks/8] |= 1 << (rank % 8)
	complete := true
	for i := range s.BlockLen(n) {
		complete = complete && b.Sealed[i/8]&(1<<(i%8)) != 0
	}
	if complete {
		if b.Digest, err = blockDigest(&t.View, s, n); err != nil {
			return err
		}
	}
	t.Put(t.K.StepBlock(s.Id, n), b.Encode())
	return nil
}

// blockDigest returns the SHA-256 of the digests of a block's parts, in rank order.
func blockDigest(v *kvtx.View, s *record.Step, n uint32) ([]byte, error) {
	h := sha256.New()
	lo := v.K.Part(s.Id, n*record.BlockRanks)
	hi := v.K.Part(s.Id, n*record.BlockRanks+s.BlockLen(n))
	ranks := uint32(0)
	err := v.Each(lo, hi, func(_, value []byte) (bool, error) {
		var p record.Part
		if err := p.Decode(value); err != nil {
			return false, err
		}
		h.Write(p.Digest[:])
		ranks++
		return true, nil
	})
	if err == nil && ranks != s.BlockLen(n) {
		err = kvtx.Corrupt("digest of a step", s.Id.String(), "block %d has %d parts, want %d", n, ranks, s.BlockLen(n))
	}
	return h.Sum(nil), err
}

// MissingRanks returns the ranks that have not sealed, at most MaxMissing.
func MissingRanks(v *kvtx.View, s *record.Step) ([]uint32, error) {
	var out []uint32
	if s.Sealed == s.World {
		return nil, nil
	}
	for n := range s.Blocks() {
		b, err := stepBlock(v, s, n)
		if err != nil {
			return nil, err
		}
		for i := range s.BlockLen(n) {
			if b.Sealed[i/8]&(1<<(i%8)) == 0 {
				if out = append(out, n*record.BlockRanks+i); len(out) == MaxMissing {
					return out, nil
				}
			}
		}
	}
	return out, nil
}
