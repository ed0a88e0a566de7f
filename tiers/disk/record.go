package disk

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/tiers"
)

// The format of a record; docs/formats/segment.md describes it. All numbers are
// little endian.
const (
	recordMagic   = "MRNRECRD"
	recordVersion = 1
	// headFixed is the length of the fixed part of a record's head; the head's
	// table follows. The last four bytes of the fixed part are its checksum.
	headFixed   = 160
	headSumAt   = headFixed - 4
	sumSize     = 4  // an entry of a chunk's table
	deletedSize = 32 // an entry of a tombstone's table
	// maxDeletions limits the entries of one tombstone record.
	maxDeletions = 1000
	block        = moraine.BlockSize
)

// recordKind says what a record is.
type recordKind uint8

const (
	kindChunk     recordKind = 1 // a chunk; its table holds the checksums of its blocks
	kindTombstone recordKind = 2 // deletions; its table names them, and it has no data
)

// extent is where a record lies. Segment 0 means nowhere.
type extent struct {
	segment uint64
	off     int64 // bytes, a multiple of block
	size    int64 // bytes, a multiple of block
}

// deletion is one entry of a tombstone. It deletes the versions of chunk id below
// the one given; the record deleted lies at victim.
type deletion struct {
	id     moraine.ChunkID
	below  moraine.LayoutVersion
	victim extent
}

// record is a decoded head.
type record struct {
	kind recordKind
	// seq orders all records of the device.
	seq uint64
	// durable says that every record with a smaller seq was durable, or void,
	// before this one was written.
	durable uint64
	at      extent
	// header and sums are set for a chunk.
	header tiers.Header
	sums   []uint32
	// replaces is the record of the same chunk that this new version made dead.
	replaces extent
	// deletions are set for a tombstone.
	deletions []deletion
}

// headBlocks returns how many blocks the head of a record with a table of n
// bytes takes.
func headBlocks(n int) int64 { return int64(headFixed+n+block-1) / block }

// chunkBlocks returns how many blocks a chunk of length bytes takes, head and data.
func chunkBlocks(length int64) (head, data int64) {
	data = int64(crc.BlockCount(length))
	return headBlocks(int(data) * sumSize), data
}

// encodeHead writes r's head into dst. dst must have exactly the size of the head,
// and is overwritten whole. salt is the device's.
func encodeHead(dst []byte, r *record, salt []byte) {
	clear(dst)
	le := binary.LittleEndian
	copy(dst, recordMagic)
	le.PutUint16(dst[8:], recordVersion)
	dst[10] = byte(r.kind)
	dst[11] = r.header.ID.Index
	le.PutUint32(dst[12:], uint32(len(dst)/block))
	le.PutUint64(dst[16:], r.seq)
	le.PutUint64(dst[24:], r.durable)
	le.PutUint64(dst[32:], r.at.segment)
	le.PutUint64(dst[40:], uint64(r.at.off))
	h := &r.header
	le.PutUint64(dst[48:], uint64(h.Length))
	le.PutUint32(dst[56:], h.CRC)
	le.PutUint32(dst[68:], uint32(h.Version))
	le.PutUint64(dst[72:], uint64(h.ID.Stripe))
	le.PutUint32(dst[80:], uint32(h.Tenant))
	le.PutUint32(dst[84:], h.KeyID)
	dst[88] = h.Cipher
	dst[89] = byte(h.Incarnation)
	copy(dst[96:112], h.Cluster[:])
	putExtent(dst[112:128], r.replaces)
	table := encodeTable(dst[headFixed:headFixed], r)
	count := len(r.sums) + len(r.deletions)
	le.PutUint32(dst[60:], crc.Sum(table))
	le.PutUint32(dst[64:], uint32(count))
	le.PutUint32(dst[headSumAt:], headSum(dst, salt))
}

// headSum is the checksum of a head's fixed part. The salt never leaves the device.
// It prevents bytes that a client stored in a chunk from passing as a record during
// a scan.
func headSum(head, salt []byte) uint32 {
	return crc.Update(crc.Sum(salt), head[:headSumAt])
}

func putExtent(dst []byte, e extent) {
	binary.LittleEndian.PutUint64(dst, e.segment)
	binary.LittleEndian.PutUint32(dst[8:], uint32(e.off/block))
	binary.LittleEndian.PutUint32(dst[12:], uint32(e.size/block))
}

func getExtent(src []byte) extent {
	return extent{
		segment: binary.LittleEndian.Uint64(src),
		off:     int64(binary.LittleEndian.Uint32(src[8:])) * block,
		size:    int64(binary.LittleEndian.Uint32(src[12:])) * block,
	}
}

// encodeTable appends r's table to dst.
func encodeTable(dst []byte, r *record) []byte {
	for _, s := range r.sums {
		dst = binary.LittleEndian.AppendUint32(dst, s)
	}
	for i := range r.deletions {
		d := &r.deletions[i]
		var e [deletedSize]byte
		binary.LittleEndian.PutUint64(e[:], uint64(d.id.Stripe))
		binary.LittleEndian.PutUint32(e[8:], uint32(d.below))
		e[12] = d.id.Index
		putExtent(e[16:], d.victim)
		dst = append(dst, e[:]...)
	}
	return dst
}

// errNoRecord means that no record of this device begins at that block.
var errNoRecord = fmt.Errorf("no record")

// decodeHead decodes the fixed part of a head from the first block of p, which was
// read from at.segment at at.off. It returns the record without its table (at.size
// is set), and the sizes of head and table in bytes. Errors: errNoRecord, and
// moraine.NewerFormat.
func decodeHead(p []byte, at extent, salt []byte) (r record, headSize, tableSize int64, err error) {
	le := binary.LittleEndian
	if len(p) < block || !bytes.Equal(p[:8], []byte(recordMagic)) || le.Uint32(p[headSumAt:]) != headSum(p, salt) {
		return r, 0, 0, errNoRecord
	}
	if v := le.Uint16(p[8:]); v != recordVersion {
		return r, 0, 0, &moraine.Error{Op: "disk.decode", Kind: moraine.NewerFormat, Err: fmt.Errorf("record has format version %d; upgrade this build", v)}
	}
	r = record{
		kind:    recordKind(p[10]),
		seq:     le.Uint64(p[16:]),
		durable: le.Uint64(p[24:]),
		at:      at,
		header: tiers.Header{
			ID:          moraine.ChunkID{Stripe: moraine.StripeID(le.Uint64(p[72:])), Index: p[11]},
			Version:     moraine.LayoutVersion(le.Uint32(p[68:])),
			Tenant:      moraine.Tenant(le.Uint32(p[80:])),
			Cluster:     moraine.UUID(p[96:112]),
			Incarnation: moraine.Incarnation(p[89]),
			Length:      int64(le.Uint64(p[48:])),
			CRC:         le.Uint32(p[56:]),
			Cipher:      p[88],
			KeyID:       le.Uint32(p[84:]),
		},
		replaces: getExtent(p[112:128]),
	}
	headSize, tableSize, err = checkHead(p, &r)
	return r, headSize, tableSize, err
}

// checkHead checks that the numbers of a head are consistent. Whoever wrote them
// knew the salt, but a bug must not lead to a read out of bounds.
func checkHead(p []byte, r *record) (headSize, tableSize int64, err error) {
	le := binary.LittleEndian
	count, dataBlocks := int64(le.Uint32(p[64:])), int64(0)
	switch {
	case le.Uint64(p[32:]) != r.at.segment || le.Uint64(p[40:]) != uint64(r.at.off):
		return 0, 0, errNoRecord // written for another place
	case r.kind == kindChunk && r.header.Length >= 1 && r.header.Length <= moraine.MaxChunkSize:
		dataBlocks = int64(crc.BlockCount(r.header.Length))
		if tableSize = count * sumSize; count != dataBlocks {
			return 0, 0, errNoRecord
		}
	case r.kind == kindTombstone && r.header.Length == 0 && count >= 1 && count <= maxDeletions:
		tableSize = count * deletedSize
	default:
		return 0, 0, errNoRecord
	}
	headSize = headBlocks(int(tableSize)) * block
	if int64(le.Uint32(p[12:]))*block != headSize {
		return 0, 0, errNoRecord
	}
	r.at.size = headSize + dataBlocks*block
	return headSize, tableSize, nil
}

// decodeTable decodes the table of r from its whole head.
func decodeTable(r *record, head []byte, tableSize int64) error {
	table := head[headFixed : headFixed+tableSize]
	if crc.Sum(table) != binary.LittleEndian.Uint32(head[60:]) {
		return fmt.Errorf("table checksum mismatch in record %d", r.seq)
	}
	if r.kind == kindChunk {
		r.sums = make([]uint32, tableSize/sumSize)
		for i := range r.sums {
			r.sums[i] = binary.LittleEndian.Uint32(table[i*sumSize:])
		}
		return nil
	}
	r.deletions = make([]deletion, tableSize/deletedSize)
	for i := range r.deletions {
		e := table[i*deletedSize:]
		r.deletions[i] = deletion{
			id:     moraine.ChunkID{Stripe: moraine.StripeID(binary.LittleEndian.Uint64(e)), Index: e[12]},
			below:  moraine.LayoutVersion(binary.LittleEndian.Uint32(e[8:])),
			victim: getExtent(e[16:32]),
		}
	}
	return nil
}
