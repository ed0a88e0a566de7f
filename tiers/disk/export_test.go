package disk

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/tiers"
)

// ReclaimNow reclaims space now. The test must open the device with an interval
// that does not pass during the test.
func (d *Device) ReclaimNow() error { return d.reclaim.once() }

// FlushIndex makes the current index durable.
func (d *Device) FlushIndex() { d.index.flush() }

// EncodeSample encodes the head of a record from plain values, for the golden file.
// With deletions it is a tombstone, otherwise a chunk.
func EncodeSample(h tiers.Header, sums []uint32, deletions []tiers.Deletion, salt [16]byte) []byte {
	r := record{kind: kindChunk, seq: 9, durable: 8, at: extent{segment: 3, off: 2 * block}, header: h, sums: sums,
		replaces: extent{segment: 2, off: 5 * block, size: 4 * block}}
	size := headBlocks(len(sums)*sumSize) * block
	if deletions != nil {
		r.kind, r.header, r.sums, r.replaces = kindTombstone, tiers.Header{}, nil, extent{}
		for i, d := range deletions {
			r.deletions = append(r.deletions, deletion{id: d.ID, below: d.Below,
				victim: extent{segment: uint64(i + 1), off: int64(i+1) * block, size: 2 * block}})
		}
		size = headBlocks(len(deletions)*deletedSize) * block
	}
	p := make([]byte, size)
	encodeHead(p, &r, salt[:])
	return p
}

// DecodeHead decodes a head that claims to lie at an offset of a segment, and
// encodes it again. ok is false if there is no head.
func DecodeHead(p []byte, segment uint64, off int64, salt [16]byte) (again []byte, ok bool) {
	r, headSize, tableSize, err := decodeHead(p, extent{segment: segment, off: off}, salt[:])
	if err != nil || headSize > int64(len(p)) || decodeTable(&r, p, tableSize) != nil {
		return nil, false
	}
	again = make([]byte, headSize)
	encodeHead(again, &r, salt[:])
	return again, true
}

// Seal sets the checksums of a head, as a fuzzer that knew the salt would.
func Seal(p []byte, salt [16]byte) {
	if len(p) < block {
		return
	}
	n := min(int(binary.LittleEndian.Uint32(p[64:]))*4, len(p)-headFixed)
	if p[10] == byte(kindTombstone) {
		n = min(int(binary.LittleEndian.Uint32(p[64:]))*deletedSize, len(p)-headFixed)
	}
	if n >= 0 {
		binary.LittleEndian.PutUint32(p[60:], crc.Sum(p[headFixed:headFixed+n]))
	}
	binary.LittleEndian.PutUint32(p[headSumAt:], headSum(p, salt[:]))
}

// IdentityBlock and SegmentBlock encode the two stamps, for the golden files.
func IdentityBlock(cluster, device moraine.UUID, salt [16]byte) []byte {
	id := Identity{Cluster: cluster, Device: device, salt: salt}
	return id.encode()
}

// SegmentBlock encodes the first block of a segment.
func SegmentBlock(cluster, device moraine.UUID, salt [16]byte) []byte {
	p := make([]byte, block)
	h := segmentHead{identity: Identity{Cluster: cluster, Device: device, salt: salt}, number: 7, size: 1 << 30}
	h.encode(p)
	return p
}

// DecodeStamps decodes p as an identity, as the first block of a segment, and as an
// incarnation.
func DecodeStamps(p []byte) (identity, segment, incarnation error) {
	_, identity = decodeIdentity(p)
	_, segment = decodeSegmentHead(p)
	_, incarnation = decodeIncarnation(p)
	return identity, segment, incarnation
}

// Restamp sets the correct checksum of a stamp.
func Restamp(p []byte) { binary.LittleEndian.PutUint32(p[stampSumAt:], crc.Sum(p[:stampSumAt])) }
