package ckpt

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"github.com/morainefs/moraine/internal/crc"
)

// A tile has the slices of all tensors of a block that begin in one band of their tensors. The key
// of a slice says where it begins: its offset in one dimension of the tensor, as a fraction of that
// dimension. A rank that wants the same part of each tensor finds its slices in one or two tiles.

// tileSlices is about how many slices a tile has.
const tileSlices = 256

// keySample bounds the keys that are sorted to find the bounds of the tiles of a block.
const keySample = 1 << 16

// Flags of a slice: its shape, or its first byte, is that of the slice before it.
const (
	sameShape = 1 << iota
	sameBegin
)

// indexTile is a tile as the head of its block lists it.
type indexTile struct {
	key    uint32 // no slice in it has a smaller one
	off    int64  // from the first tile of the block
	length int64
	crc    uint32
}

// keyOf returns the key of an offset: how far it is into a dimension, as a fraction of 2^32.
func keyOf(offset, dim int64) uint32 {
	if offset >= dim {
		return math.MaxUint32
	}
	hi, lo := bits.Mul64(uint64(offset), 1<<32)
	q, _ := bits.Div64(hi, lo, uint64(dim))
	return uint32(q)
}

func (e *blockEntry) keyOf(s *SliceInfo) uint32 {
	if len(e.shape) == 0 {
		return 0
	}
	return keyOf(s.Offset[e.key], e.shape[e.key])
}

// keyDim returns the dimension with the most different offsets. If several have as many, it is the
// first. The slices are in order of offset.
func keyDim(list []SliceInfo, dims int) int {
	best, most := 0, 0
	seen := make([]int64, len(list))
	for d := range dims {
		for i := range list {
			seen[i] = list[i].Offset[d]
		}
		slices.Sort(seen)
		n := 1
		for i := 1; i < len(seen); i++ {
			if seen[i] != seen[i-1] {
				n++
			}
		}
		if n > most {
			best, most = d, n
		}
		if most == len(list) {
			break
		}
	}
	return best
}

// encodeTiles returns the tiles of a block. entries are those of tensors.
func encodeTiles(tensors []TensorInfo, entries []blockEntry) ([]indexTile, []byte) {
	total := 0
	left := make([][]*SliceInfo, len(tensors)) // of each tensor, by key
	for i := range tensors {
		left[i] = byKey(&tensors[i], &entries[i])
		total += len(left[i])
	}
	if total == 0 {
		return nil, nil
	}
	bounds := tileBounds(left, entries, total)
	out := make([]byte, 0, total*24)
	var tiles []indexTile
	var run []byte
	for n, from := range bounds {
		t := indexTile{key: from, off: int64(len(out))}
		last := 0
		for i := range left {
			take := 0
			for take < len(left[i]) && (n+1 == len(bounds) || entries[i].keyOf(left[i][take]) < bounds[n+1]) {
				take++
			}
			if take == 0 {
				continue
			}
			run = appendRun(run[:0], left[i][:take])
			left[i] = left[i][take:]
			out = binary.AppendUvarint(out, uint64(i-last))
			out = binary.AppendUvarint(out, uint64(take))
			out = binary.AppendUvarint(out, uint64(len(run)))
			out = append(out, run...)
			last = i
		}
		t.length = int64(len(out)) - t.off
		t.crc = crc.Sum(out[t.off:])
		tiles = append(tiles, t)
	}
	return tiles, out
}

// byKey returns the slices of a tensor in order of key. Those of one key stay in their order.
func byKey(t *TensorInfo, e *blockEntry) []*SliceInfo {
	out := make([]*SliceInfo, len(t.Slices))
	for i := range t.Slices {
		out[i] = &t.Slices[i]
	}
	if e.key != 0 {
		slices.SortStableFunc(out, func(a, b *SliceInfo) int { return cmp.Compare(a.Offset[e.key], b.Offset[e.key]) })
	}
	return out
}

// tileBounds returns the first key of each tile, ascending, so that the tiles have about as many
// slices each. It sorts a sample of the keys. The first bound is 0.
func tileBounds(left [][]*SliceInfo, entries []blockEntry, total int) []uint32 {
	step := total/keySample + 1
	keys := make([]uint32, 0, total/step+1)
	n := 0
	for i := range left {
		for _, s := range left[i] {
			if n%step == 0 {
				keys = append(keys, entries[i].keyOf(s))
			}
			n++
		}
	}
	slices.Sort(keys)
	bounds := []uint32{0}
	count := max(total/tileSlices, 1)
	for i := 1; i < count; i++ {
		if k := keys[i*len(keys)/count]; k > bounds[len(bounds)-1] {
			bounds = append(bounds, k)
		}
	}
	return bounds
}

// appendRun appends slices of one tensor.
func appendRun(b []byte, list []*SliceInfo) []byte {
	before := &SliceInfo{}
	for i, s := range list {
		var flags byte
		if i > 0 && slices.Equal(s.Shape, before.Shape) {
			flags |= sameShape
		}
		if i > 0 && s.Begin == before.Begin {
			flags |= sameBegin
		}
		b = append(b, flags)
		b = binary.AppendVarint(b, int64(s.File)-int64(before.File))
		b = appendInts(b, s.Offset)
		if flags&sameShape == 0 {
			b = appendInts(b, s.Shape)
		}
		if flags&sameBegin == 0 {
			b = binary.AppendUvarint(b, uint64(s.Begin))
		}
		b = append(b, s.Digest[:]...)
		before = s
	}
	return b
}

// parseTile calls yield for each slice of the entries that want selects; nil: of all. It checks the
// tile against its CRC, and each slice against its tensor and its file.
func (h *blockHead) parseTile(b []byte, t *indexTile, files []FileInfo, want func(entry int) bool, yield func(entry int, s SliceInfo)) error {
	if crc.Sum(b) != t.crc {
		return corrupt("a tile of the block of %q does not match its CRC", h.entries[0].name)
	}
	d := decoder{b: b}
	for i, first := 0, true; len(d.b) > 0 && d.err == nil; first = false {
		step := int(d.uint(uint64(len(h.entries))))
		i += step
		if i >= len(h.entries) || (!first && step == 0) {
			d.fail("a tile of the block of %q has slices of entry %d of %d", h.entries[0].name, i, len(h.entries))
			break
		}
		count := d.uint(uint64(h.entries[i].slices))
		run := decoder{b: d.bytes(int(d.uint(uint64(len(d.b)))))}
		if d.err != nil || (want != nil && !want(i)) {
			continue
		}
		if err := run.run(&h.entries[i], files, count, t.key, func(s SliceInfo) { yield(i, s) }); err != nil {
			return err
		}
	}
	return d.err
}

// run reads count slices of e, which must be all of d.
func (d *decoder) run(e *blockEntry, files []FileInfo, count uint64, key uint32, yield func(SliceInfo)) error {
	var s SliceInfo
	dims := len(e.shape)
	for n := range count {
		flags := d.byte()
		if flags > sameShape|sameBegin || (n == 0 && flags != 0) {
			d.fail("tensor %q: a slice has flags %d", e.name, flags)
		}
		s.File = int(int64(s.File) + d.int())
		s.Offset = d.ints(dims)
		if flags&sameShape == 0 {
			s.Shape = d.ints(dims)
		}
		if flags&sameBegin == 0 {
			s.Begin = int64(d.uint(math.MaxInt64))
		}
		copy(s.Digest[:], d.bytes(len(s.Digest)))
		if d.err == nil {
			d.checkSlice(e, &s, files, key)
		}
		if d.err != nil {
			return d.err
		}
		yield(s)
	}
	if len(d.b) != 0 {
		d.fail("tensor %q: %d bytes follow its slices", e.name, len(d.b))
	}
	return d.err
}

func (d *decoder) checkSlice(e *blockEntry, s *SliceInfo, files []FileInfo, key uint32) {
	if err := checkSlice(e.shape, s.Offset, s.Shape); err != nil {
		d.fail("tensor %q: %v", e.name, err)
		return
	}
	switch {
	case s.File < 0 || s.File >= len(files) || !files[s.File].hasTensors() ||
		s.Begin > files[s.File].Size-volume(s.Shape)*int64(e.dtype.Size()):
		d.fail("tensor %q: a slice is past the end of file %d", e.name, s.File)
	case volume(s.Shape) == 0:
		d.fail("tensor %q: a slice without elements", e.name)
	case e.keyOf(s) < key || (len(e.shape) > 0 && s.Shape[e.key] > e.reach):
		d.fail("tensor %q: a slice is not in its tile", e.name)
	}
}

// band returns the range of keys that slices have that share elements with [from, from+n) of the
// key dimension.
func (e *blockEntry) band(from, n int64) (lo, hi uint32) {
	dim := e.shape[e.key]
	return keyOf(max(from-e.reach+1, 0), dim), keyOf(max(from+n-1, 0), dim)
}

// tilesOf returns the tiles [i, j) that may have slices with keys in [lo, hi].
func (h *blockHead) tilesOf(lo, hi uint32) (i, j int) {
	for i+1 < len(h.tiles) && h.tiles[i+1].key <= lo {
		i++
	}
	for j = i; j < len(h.tiles) && h.tiles[j].key <= hi; j++ {
	}
	return i, j
}
