package ckpt

import (
	"encoding/binary"
	"math"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/adopted"
	"github.com/morainefs/moraine/transport/wire"
)

// indexTop is the part of the index that a reader always has in memory.
type indexTop struct {
	key     wire.StepKey
	world   uint32
	tensors uint64
	bytes   uint64 // of all tensors, replicas not counted
	files   []FileInfo
	blocks  []indexBlock
}

func appendTop(b []byte, t *indexTop) []byte {
	b = binary.LittleEndian.AppendUint64(b, t.key.Run)
	b = binary.AppendUvarint(b, uint64(t.key.Attempt))
	b = binary.AppendUvarint(b, t.key.Step)
	b = binary.AppendUvarint(b, uint64(t.world))
	b = binary.AppendUvarint(b, t.tensors)
	b = binary.AppendUvarint(b, t.bytes)
	b = binary.AppendUvarint(b, uint64(len(t.files)))
	for i := range t.files {
		f := &t.files[i]
		b = appendString(b, f.Name)
		b = append(b, byte(f.Kind))
		b = binary.AppendUvarint(b, uint64(f.Rank))
		b = binary.AppendUvarint(b, uint64(f.Size))
		b = binary.LittleEndian.AppendUint32(b, f.CRC)
		switch f.Kind {
		case TensorFile:
			b = append(b, f.Root[:]...)
		case BlobFile:
			b = appendString(b, f.Blob)
			b = append(b, f.Digest[:]...)
		}
	}
	b = binary.AppendUvarint(b, uint64(len(t.blocks)))
	for i := range t.blocks {
		k := &t.blocks[i]
		b = appendString(b, k.first)
		b = binary.AppendUvarint(b, uint64(k.head))
		b = binary.AppendUvarint(b, uint64(k.tiles))
		b = binary.AppendUvarint(b, uint64(k.entries))
		b = binary.LittleEndian.AppendUint32(b, k.crc)
	}
	return b
}

// parseTop reads the top; dataLen is the number of bytes before it.
func parseTop(b []byte, dataLen int64) (*indexTop, error) {
	d := decoder{b: b}
	t := &indexTop{}
	t.key.Run = d.u64()
	t.key.Attempt = uint32(d.uint(math.MaxUint32))
	t.key.Step = d.uint(math.MaxUint64)
	t.world = uint32(d.uint(MaxWorld))
	t.tensors = d.uint(math.MaxInt64)
	t.bytes = d.uint(math.MaxUint64)
	for range d.count(8) {
		t.files = append(t.files, d.file(t.world))
	}
	var at int64
	var entries uint64
	for i := range d.count(8) {
		k := indexBlock{first: d.str(MaxNameLen), off: at}
		k.head = int64(d.uint(maxIndexBlock))
		k.tiles = int64(d.uint(maxIndexBlock))
		k.entries = int(d.uint(uint64(k.head)))
		k.crc = d.u32()
		at += k.length()
		entries += uint64(k.entries)
		if k.entries == 0 || (i > 0 && strings.Compare(t.blocks[i-1].first, k.first) >= 0) {
			d.fail("block %d is empty or out of order", i)
		}
		t.blocks = append(t.blocks, k)
	}
	switch {
	case d.err != nil:
		return nil, d.err
	case len(d.b) != 0:
		return nil, corrupt("%d bytes follow the top", len(d.b))
	case at != dataLen || entries != t.tensors:
		return nil, corrupt("blocks of %d bytes and %d entries; the index has %d and %d", at, entries, dataLen, t.tensors)
	}
	return t, nil
}

func (d *decoder) file(world uint32) FileInfo {
	f := FileInfo{Name: d.str(moraine.MaxNameLen), Kind: FileKind(d.byte())}
	if f.Name == "" || f.Name == "." || f.Name == ".." || strings.ContainsAny(f.Name, "/\x00") {
		// A restore writes a file of this name.
		d.fail("%q is not the name of a file of the step", f.Name)
	}
	f.Rank = uint32(d.uint(uint64(max(world, 1) - 1)))
	f.Size = int64(d.uint(math.MaxInt64))
	f.CRC = d.u32()
	f.Path = f.Name
	switch f.Kind {
	case AdoptedFile, AdoptedTensors:
		path, err := adopted.Path(f.Name)
		if err != nil {
			d.fail("%q is not the name of an adopted file: %v", f.Name, err)
		}
		f.Path = path
	case TensorFile:
		copy(f.Root[:], d.bytes(len(f.Root)))
	case BlobFile:
		f.Blob = d.str(moraine.MaxNameLen)
		copy(f.Digest[:], d.bytes(len(f.Digest)))
	default:
		d.fail("file %q is of kind %d", f.Name, f.Kind)
	}
	return f
}
