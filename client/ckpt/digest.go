package ckpt

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
)

// Digest is the digest of a run of bytes. It is the first 16 bytes of a SHA-256 over their
// length and the CRC32C of each of their 4 KiB blocks.
//
// It finds damage by storage (flipped, torn, stale, misplaced bytes). It misses damage to one
// block once in 2^32, and a wrong 4 MiB never in practice. It is no defence against an attacker
// who constructs bytes to fit. Such an attacker needs write access to the run, and can then change
// its data directly. The digest costs what the CRC costs, about 0.05 CPU-s/GB, where SHA-256 over
// all bytes costs 0.6.
type Digest [16]byte

// String returns the digest in hexadecimal.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

func parseDigest(s string) (Digest, error) {
	var d Digest
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(d) {
		return d, fmt.Errorf("%q is not a digest", s)
	}
	return Digest(b), nil
}

// digestDomain separates these digests from any other SHA-256.
const digestDomain = "moraine blocks 1\n"

// digestBlocks returns the digest of size bytes whose blocks have these CRCs.
func digestBlocks(blocks []uint32, size int64) Digest {
	root := hashBlocks(blocks, size)
	return Digest(root[:len(Digest{})])
}

// hashBlocks returns the SHA-256 of which digestBlocks returns the first bytes.
func hashBlocks(blocks []uint32, size int64) [sha256.Size]byte {
	h := sha256.New()
	h.Write([]byte(digestDomain))
	var buf [4096]byte
	binary.LittleEndian.PutUint64(buf[:], uint64(size))
	h.Write(buf[:8])
	for len(blocks) > 0 {
		n := min(len(blocks), len(buf)/4)
		for i, c := range blocks[:n] {
			binary.LittleEndian.PutUint32(buf[4*i:], c)
		}
		h.Write(buf[:4*n])
		blocks = blocks[n:]
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// headerRoot returns the root of the header of a part's file: a digest, but not cut to 16 bytes. A step
// of 10,000 ranks has gigabytes of headers, of which SHA-256 over all bytes costs ten times as much.
func headerRoot(header []byte) [sha256.Size]byte {
	return hashBlocks(crc.Blocks(nil, header), int64(len(header)))
}

// DigestOf returns the digest of p.
func DigestOf(p []byte) Digest {
	return digestBlocks(crc.Blocks(nil, p), int64(len(p)))
}

// summer computes the digest and the CRC32C of bytes that arrive in pieces.
type summer struct {
	blocks []uint32
	part   uint32 // CRC of the block that is not full yet
	have   int    // its bytes
	size   int64
}

func (s *summer) write(p []byte) {
	s.size += int64(len(p))
	if s.have > 0 {
		n := min(len(p), moraine.BlockSize-s.have)
		s.part = crc.Update(s.part, p[:n])
		s.have += n
		p = p[n:]
		if s.have < moraine.BlockSize {
			return
		}
		s.blocks = append(s.blocks, s.part)
		s.part, s.have = 0, 0
	}
	whole := len(p) / moraine.BlockSize * moraine.BlockSize
	s.blocks = crc.Blocks(s.blocks, p[:whole])
	if whole < len(p) {
		s.part, s.have = crc.Sum(p[whole:]), len(p)-whole
	}
}

// sum ends the run of bytes.
func (s *summer) sum() (Digest, uint32) {
	s.end()
	return digestBlocks(s.blocks, s.size), crc.CombineBlocks(s.blocks, s.size)
}

// root ends the run of bytes, and returns its digest as headerRoot does.
func (s *summer) root() [sha256.Size]byte {
	s.end()
	return hashBlocks(s.blocks, s.size)
}

func (s *summer) end() {
	if s.have > 0 {
		s.blocks = append(s.blocks, s.part)
		s.part, s.have = 0, 0
	}
}

// partDigest is the digest of a rank's part, computed from the roots of the headers of its safetensors files
// in order. The headers contain the digests of all tensors and blobs, so it covers every byte.
func partDigest(roots [][sha256.Size]byte) [sha256.Size]byte {
	h := sha256.New()
	h.Write([]byte("moraine part 1\n"))
	for i := range roots {
		h.Write(roots[i][:])
	}
	return [sha256.Size]byte(h.Sum(nil))
}
