package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers"
)

// index maps chunks to their records. It is a cache of the segments. It runs
// without a write-ahead log, so a crash takes it back to its last flush. A scan of
// the segments that are not marked complete brings it up to date again. It requires
// only one property of pebble: flushes keep the order of writes. A durable mark
// therefore implies every entry set before it.
//
// Keys are a table byte and big-endian numbers; values begin with a version byte.
type index struct {
	cfg      *Config
	deps     *Deps
	log      *slog.Logger
	identity Identity
	failure  *failure
	ballast  *ballast

	db      *pebble.DB  // nil unless the index is open; pebble has its own locks
	rebuilt bool        // open found no usable index
	opened  atomic.Bool // set once Open of the device succeeded
}

// Tables of the index.
const (
	tableChunk = 'c' // stripe, index -> entry
	tableMark  = 's' // segment -> it is complete
	tableMeta  = 'm' // -> the device that the index belongs to
	tableNext  = 'n' // -> the next numbers, for when no segment is left
)

const indexVersion = 1

// entry says where a chunk is. It holds the chunk's header except the cluster,
// which is that of the device.
type entry struct {
	seq    uint64
	at     extent
	header tiers.Header
}

const entrySize = 1 + 8 + 8 + 8 + 8 + 4 + 4 + 8 + 4 + 1 + 1 + 4

func chunkKey(id moraine.ChunkID) []byte {
	k := make([]byte, 0, 10)
	k = append(k, tableChunk)
	k = binary.BigEndian.AppendUint64(k, uint64(id.Stripe))
	return append(k, id.Index)
}

func segmentKey(number uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{tableMark}, number)
}

func encodeEntry(e *entry) []byte {
	le := binary.LittleEndian
	v := make([]byte, 0, entrySize)
	v = append(v, indexVersion)
	v = le.AppendUint64(v, e.seq)
	v = le.AppendUint64(v, e.at.segment)
	v = le.AppendUint64(v, uint64(e.at.off))
	v = le.AppendUint64(v, uint64(e.at.size))
	v = le.AppendUint32(v, uint32(e.header.Version))
	v = le.AppendUint32(v, uint32(e.header.Tenant))
	v = le.AppendUint64(v, uint64(e.header.Length))
	v = le.AppendUint32(v, e.header.CRC)
	v = append(v, e.header.Cipher, byte(e.header.Incarnation))
	return le.AppendUint32(v, e.header.KeyID)
}

// decodeEntry decodes an entry that encodeEntry wrote for this key.
func decodeEntry(key, v []byte, cluster moraine.UUID) (entry, error) {
	if len(key) != 10 || len(v) != entrySize || v[0] != indexVersion {
		return entry{}, fmt.Errorf("%w: entry %x = %x", pebble.ErrCorruption, key, v)
	}
	le := binary.LittleEndian
	return entry{
		seq: le.Uint64(v[1:]),
		at:  extent{segment: le.Uint64(v[9:]), off: int64(le.Uint64(v[17:])), size: int64(le.Uint64(v[25:]))},
		header: tiers.Header{
			ID:          moraine.ChunkID{Stripe: moraine.StripeID(binary.BigEndian.Uint64(key[1:])), Index: key[9]},
			Version:     moraine.LayoutVersion(le.Uint32(v[33:])),
			Tenant:      moraine.Tenant(le.Uint32(v[37:])),
			Cluster:     cluster,
			Length:      int64(le.Uint64(v[41:])),
			CRC:         le.Uint32(v[49:]),
			Cipher:      v[53],
			Incarnation: moraine.Incarnation(v[54]),
			KeyID:       le.Uint32(v[55:]),
		},
	}, nil
}

// lookup returns the entry of a chunk.
func (x *index) lookup(id moraine.ChunkID) (e entry, found bool, err error) {
	key := chunkKey(id)
	v, closer, err := x.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return e, false, nil
	}
	if err != nil {
		return e, false, err
	}
	e, err = decodeEntry(key, v, x.identity.Cluster)
	return e, err == nil, errors.Join(err, closer.Close())
}

func (x *index) set(e *entry) error {
	return x.db.Set(chunkKey(e.header.ID), encodeEntry(e), pebble.NoSync)
}

func (x *index) remove(id moraine.ChunkID) error { return x.db.Delete(chunkKey(id), pebble.NoSync) }

// mark is what the index stores about a complete segment.
type mark struct{ size, lastSeq uint64 }

func encodePair(a, b uint64) []byte {
	v := binary.LittleEndian.AppendUint64([]byte{indexVersion}, a)
	return binary.LittleEndian.AppendUint64(v, b)
}

func decodePair(v []byte) (a, b uint64, err error) {
	if len(v) != 17 || v[0] != indexVersion {
		return 0, 0, fmt.Errorf("%w: value %x", pebble.ErrCorruption, v)
	}
	return binary.LittleEndian.Uint64(v[1:]), binary.LittleEndian.Uint64(v[9:]), nil
}

// setMark marks a segment complete.
func (x *index) setMark(s *segment) error {
	return x.db.Set(segmentKey(s.number), encodePair(uint64(s.size), s.lastSeq), pebble.NoSync)
}

func (x *index) removeMark(number uint64) error {
	return x.db.Delete(segmentKey(number), pebble.NoSync)
}

// marks returns the complete segments.
func (x *index) marks() (map[uint64]mark, error) {
	marks := map[uint64]mark{}
	err := x.scan([]byte{tableMark}, []byte{tableMark + 1}, func(k, v []byte) error {
		if len(k) != 9 {
			return fmt.Errorf("%w: key %x", pebble.ErrCorruption, k)
		}
		size, last, err := decodePair(v)
		marks[binary.BigEndian.Uint64(k[1:])] = mark{size: size, lastSeq: last}
		return err
	})
	return marks, err
}

// errStop ends a scan early, without an error.
var errStop = errors.New("stop")

// scan calls fn for the keys in [from, to), in order. fn must not keep k and v.
func (x *index) scan(from, to []byte, fn func(k, v []byte) error) error {
	it, err := x.db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to})
	if err != nil {
		return err
	}
	for ok := it.First(); ok && err == nil; ok = it.Next() {
		v, valueErr := it.ValueAndErr()
		if err = valueErr; err == nil {
			err = fn(it.Key(), v)
		}
	}
	if err == errStop {
		err = nil
	}
	return errors.Join(err, it.Error(), it.Close())
}

// scanChunks calls fn for the entries from a chunk on, in order.
func (x *index) scanChunks(from moraine.ChunkID, fn func(e *entry) error) error {
	return x.scan(chunkKey(from), []byte{tableChunk + 1}, func(k, v []byte) error {
		e, err := decodeEntry(k, v, x.identity.Cluster)
		if err != nil {
			return err
		}
		return fn(&e)
	})
}

// setNext stores the next sequence number and segment number.
func (x *index) setNext(seq, segment uint64) error {
	return x.db.Set([]byte{tableNext}, encodePair(seq, segment), pebble.NoSync)
}

func (x *index) next() (seq, segment uint64, err error) {
	v, closer, err := x.db.Get([]byte{tableNext})
	if errors.Is(err, pebble.ErrNotFound) {
		return 1, 1, nil
	}
	if err != nil {
		return 0, 0, err
	}
	seq, segment, err = decodePair(v)
	return seq, segment, errors.Join(err, closer.Close())
}
