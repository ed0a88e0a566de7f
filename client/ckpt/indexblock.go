package ckpt

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/morainefs/moraine/client/ckpt/safetensors"
	"github.com/morainefs/moraine/internal/crc"
)

// A block of the index is a head and tiles. The head has the tensors and a table of the tiles, the
// tiles have the slices of all its tensors: see indextile.go. A reader of a few slices reads the
// head and the tiles that have them.

// indexBlock is a block as the top lists it.
type indexBlock struct {
	first   string // name of the first entry
	off     int64
	head    int64 // length in bytes
	tiles   int64 // length of all tiles in bytes
	entries int
	crc     uint32 // of the head
}

func (b *indexBlock) length() int64 { return b.head + b.tiles }

// blockHead is a parsed head.
type blockHead struct {
	entries []blockEntry
	tiles   []indexTile
}

// blockEntry is a tensor without its slices.
type blockEntry struct {
	name   string
	dtype  DType
	shape  []int64
	slices int
	// key is the dimension by whose offset the slices are in tiles, and reach the longest slice in it.
	key   int
	reach int64
}

// blockFull reports whether a block with so many bytes of entries and so many slices ends.
func blockFull(entryBytes, slices int) bool {
	return entryBytes >= blockTarget || slices >= blockSlices
}

// entrySize is about how many bytes an entry takes in a head.
func entrySize(name string, dims int) int { return len(name) + 6 + 3*dims }

// encodeBlock returns a block of tensors, which are sorted by name. Its offset is not set.
func encodeBlock(tensors []TensorInfo) (indexBlock, []byte, error) {
	b := indexBlock{first: tensors[0].Name, entries: len(tensors)}
	entries := make([]blockEntry, len(tensors))
	for i := range tensors {
		entries[i] = entryOf(&tensors[i])
	}
	tiles, body := encodeTiles(tensors, entries)
	var out []byte
	for i := range entries {
		out = appendEntry(out, &entries[i])
	}
	out = binary.AppendUvarint(out, uint64(len(tiles)))
	var last uint32
	for i := range tiles {
		out = binary.AppendUvarint(out, uint64(tiles[i].key-last))
		out = binary.AppendUvarint(out, uint64(tiles[i].length))
		out = binary.LittleEndian.AppendUint32(out, tiles[i].crc)
		last = tiles[i].key
	}
	b.head, b.tiles, b.crc = int64(len(out)), int64(len(body)), crc.Sum(out)
	if b.length() > maxIndexBlock {
		return b, nil, fmt.Errorf("the block of tensor %q has %d bytes; %d at most", b.first, b.length(), maxIndexBlock)
	}
	return b, append(out, body...), nil
}

func entryOf(t *TensorInfo) blockEntry {
	e := blockEntry{name: t.Name, dtype: t.DType, shape: t.Shape, slices: len(t.Slices)}
	if len(t.Slices) > 0 && len(t.Shape) > 0 {
		e.key = keyDim(t.Slices, len(t.Shape))
		for i := range t.Slices {
			e.reach = max(e.reach, t.Slices[i].Shape[e.key])
		}
	}
	return e
}

func appendEntry(b []byte, e *blockEntry) []byte {
	b = appendString(b, e.name)
	b = append(b, byte(e.dtype), byte(len(e.shape)))
	b = appendInts(b, e.shape)
	b = binary.AppendUvarint(b, uint64(e.slices))
	if e.slices > 0 && len(e.shape) > 0 {
		b = append(b, byte(e.key))
		b = binary.AppendUvarint(b, uint64(e.reach))
	}
	return b
}

// parseHead reads the head of a block and checks it against the top.
func parseHead(b []byte, k *indexBlock) (*blockHead, error) {
	if crc.Sum(b) != k.crc {
		return nil, corrupt("the head of the block of %q does not match its CRC", k.first)
	}
	d := decoder{b: b}
	h := &blockHead{entries: make([]blockEntry, 0, min(k.entries, len(b)/4+1))}
	for i := 0; i < k.entries && d.err == nil; i++ {
		e := d.entry()
		if (i == 0 && e.name != k.first) || (i > 0 && h.entries[i-1].name >= e.name) {
			d.fail("entry %q is out of order", e.name)
		}
		h.entries = append(h.entries, e)
	}
	var at int64
	var key uint64
	for i := range d.count(6) {
		step := d.uint(math.MaxUint32)
		if key += step; key > math.MaxUint32 || (step == 0 && i > 0) {
			d.fail("tile %d of the block of %q is out of order", i, k.first)
		}
		t := indexTile{key: uint32(key), off: at, length: int64(d.uint(uint64(k.tiles - at))), crc: d.u32()}
		at += t.length
		h.tiles = append(h.tiles, t)
	}
	if d.err == nil && (len(d.b) != 0 || at != k.tiles) {
		d.fail("the head of the block of %q has %d bytes left, and tiles of %d bytes of %d", k.first, len(d.b), at, k.tiles)
	}
	if d.err != nil {
		return nil, d.err
	}
	return h, nil
}

func (d *decoder) entry() blockEntry {
	e := blockEntry{name: d.str(MaxNameLen), dtype: DType(d.byte())}
	dims := int(d.byte())
	if dims > safetensors.MaxDims {
		d.fail("tensor %q has %d dimensions", e.name, dims)
		return e
	}
	e.shape = d.ints(dims)
	if _, err := safetensors.SizeOf(e.dtype, e.shape); err != nil {
		d.fail("tensor %q: %v", e.name, err)
	}
	e.slices = int(d.uint(math.MaxInt32))
	if e.slices > 0 && dims > 0 {
		e.key = int(d.byte())
		e.reach = int64(d.uint(math.MaxInt64))
		if e.key >= dims {
			d.fail("tensor %q: its slices are in order of dimension %d", e.name, e.key)
		}
	}
	return e
}

func (e *blockEntry) tensor() TensorInfo {
	return TensorInfo{Name: e.name, DType: e.dtype, Shape: e.shape}
}

// find returns the number of the entry of a name; -1 if there is none.
func (h *blockHead) find(name string) int {
	lo, hi := 0, len(h.entries)
	for lo < hi {
		if m := (lo + hi) / 2; h.entries[m].name < name {
			lo = m + 1
		} else {
			hi = m
		}
	}
	if lo < len(h.entries) && h.entries[lo].name == name {
		return lo
	}
	return -1
}
