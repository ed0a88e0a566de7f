package ckpt

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
	"github.com/morainefs/moraine/internal/adopted"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/transport/wire"
)

// IndexName is the name of the index in a step's directory.
const IndexName = adopted.IndexName

// The format of the index has blocks of entries sorted by tensor name, a top, and a footer of
// fixed size. The top has the files of the step and the first name of each block.
// docs/formats/checkpoint-index.md describes it.
const (
	indexMagic   = "MRNCKIDX"
	indexVersion = 1
	footerSize   = 64
	// blockTarget is the size at which a block ends, in bytes. An entry is never split, so a
	// block may be larger.
	blockTarget = 64 << 10
	// maxIndexBlock and maxIndexTop bound the memory of a reader.
	maxIndexBlock = 64 << 20
	maxIndexTop   = 256 << 20
)

// FileKind is the kind of a file of a step.
type FileKind uint8

const (
	// TensorFile is a safetensors file.
	TensorFile FileKind = 1
	// BlobFile holds the bytes of one blob.
	BlobFile FileKind = 2
	// AdoptedFile is a file of a framework, and AdoptedTensors a safetensors file of one. The step has
	// no checksum of them: nobody has read their bytes. Each read compares the bytes with the
	// checksums of their chunks.
	AdoptedFile    FileKind = 3
	AdoptedTensors FileKind = 4
)

// FileInfo is one file of a step, as its index lists it.
type FileInfo struct {
	Name string
	// Path is where a restore puts the file: Name, or of an adopted file its path below the directory
	// that was adopted.
	Path string
	Kind FileKind
	// Rank is the number of the part, in an adopted step one of 64 files.
	Rank uint32
	Size int64
	// CRC is the CRC32C of the whole file; 0 of an adopted one.
	CRC uint32
	// Root is the SHA-256 of everything before the data, for a TensorFile.
	Root [32]byte
	// Blob and Digest are a BlobFile's name and digest.
	Blob   string
	Digest Digest
}

// Adopted reports whether a framework wrote the file, so that the step has no checksum of it.
func (f *FileInfo) Adopted() bool { return f.Kind == AdoptedFile || f.Kind == AdoptedTensors }

func (f *FileInfo) hasTensors() bool { return f.Kind == TensorFile || f.Kind == AdoptedTensors }

// SliceInfo is one slice of a tensor: where in the tensor and where on disk.
type SliceInfo struct {
	// File indexes Checkpoint.Files.
	File          int
	Offset, Shape []int64
	// Begin is the offset of the slice's first byte in the file.
	Begin int64
	// Digest is zero in an adopted file.
	Digest Digest
}

// TensorInfo is one tensor of a checkpoint.
type TensorInfo struct {
	Name  string
	DType DType
	// Shape of the whole tensor.
	Shape []int64
	// Slices cover the tensor. Replicas (slices of the same range and the same bytes) are
	// adjacent; a tensor without elements has none.
	Slices []SliceInfo
}

// Size returns the bytes of the whole tensor.
func (t *TensorInfo) Size() int64 { return volume(t.Shape) * int64(t.DType.Size()) }

// indexTop is the part of the index that a reader always has in memory.
type indexTop struct {
	key     wire.StepKey
	world   uint32
	tensors uint64
	bytes   uint64 // of all tensors, replicas not counted
	files   []FileInfo
	blocks  []indexBlock
}

type indexBlock struct {
	first   string // name of the first entry
	off     int64
	length  int64
	entries int
	crc     uint32
}

// encodeIndex writes the index of tensors, which are sorted by name.
func encodeIndex(top *indexTop, tensors []TensorInfo) ([]byte, error) {
	var out []byte
	top.blocks, top.tensors, top.bytes = nil, uint64(len(tensors)), 0
	for i := 0; i < len(tensors); {
		b := indexBlock{first: tensors[i].Name, off: int64(len(out))}
		for ; i < len(tensors) && int64(len(out))-b.off < blockTarget; i++ {
			out = appendTensor(out, &tensors[i])
			top.bytes += uint64(tensors[i].Size())
			b.entries++
		}
		b.length = int64(len(out)) - b.off
		if b.length > maxIndexBlock {
			return nil, fmt.Errorf("tensor %q has an entry of %d bytes; %d at most", b.first, b.length, maxIndexBlock)
		}
		b.crc = crc.Sum(out[b.off:])
		top.blocks = append(top.blocks, b)
	}
	topOff := len(out)
	out = appendTop(out, top)
	if len(out)-topOff > maxIndexTop {
		return nil, fmt.Errorf("the top of the index has %d bytes; it may have %d", len(out)-topOff, maxIndexTop)
	}
	return appendFooter(out, topOff), nil
}

func appendFooter(out []byte, topOff int) []byte {
	f := make([]byte, footerSize)
	copy(f, indexMagic)
	binary.LittleEndian.PutUint32(f[8:], indexVersion)
	binary.LittleEndian.PutUint64(f[16:], uint64(topOff))
	binary.LittleEndian.PutUint64(f[24:], uint64(len(out)-topOff))
	binary.LittleEndian.PutUint32(f[32:], crc.Sum(out[topOff:]))
	binary.LittleEndian.PutUint32(f[footerSize-4:], crc.Sum(f[:footerSize-4]))
	return append(out, f...)
}

// parseFooter returns where the top is. fileSize is the size of the whole index.
func parseFooter(f []byte, fileSize int64) (off, length int64, sum uint32, err error) {
	if len(f) != footerSize || string(f[:8]) != indexMagic {
		return 0, 0, 0, corrupt("the file has no footer of a checkpoint index")
	}
	if crc.Sum(f[:footerSize-4]) != binary.LittleEndian.Uint32(f[footerSize-4:]) {
		return 0, 0, 0, corrupt("the footer does not match its CRC")
	}
	if v := binary.LittleEndian.Uint32(f[8:]); v != indexVersion {
		return 0, 0, 0, &moraine.Error{Op: "read index", Kind: moraine.NewerFormat,
			Err: fmt.Errorf("version %d; this build reads %d", v, indexVersion)}
	}
	o, n := binary.LittleEndian.Uint64(f[16:]), binary.LittleEndian.Uint64(f[24:])
	if n > maxIndexTop || o > math.MaxInt64-n-footerSize || int64(o+n)+footerSize != fileSize {
		return 0, 0, 0, corrupt("the top at [%d, +%d) does not fit a file of %d bytes", o, n, fileSize)
	}
	return int64(o), int64(n), binary.LittleEndian.Uint32(f[32:]), nil
}

func corrupt(format string, args ...any) error {
	return &moraine.Error{Op: "read index", Kind: moraine.Corrupt, Err: fmt.Errorf(format, args...)}
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
		b = binary.AppendUvarint(b, uint64(k.length))
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
	for i := range d.count(7) {
		k := indexBlock{first: d.str(MaxNameLen), off: at}
		k.length = int64(d.uint(maxIndexBlock))
		k.entries = int(d.uint(uint64(k.length)))
		k.crc = d.u32()
		at += k.length
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

func appendTensor(b []byte, t *TensorInfo) []byte {
	b = appendString(b, t.Name)
	b = append(b, byte(t.DType), byte(len(t.Shape)))
	b = appendInts(b, t.Shape)
	b = binary.AppendUvarint(b, uint64(len(t.Slices)))
	for i := range t.Slices {
		s := &t.Slices[i]
		b = binary.AppendUvarint(b, uint64(s.File))
		b = appendInts(b, s.Offset)
		b = appendInts(b, s.Shape)
		b = binary.AppendUvarint(b, uint64(s.Begin))
		b = append(b, s.Digest[:]...)
	}
	return b
}

// parseBlock reads the entries of one block and checks them against the top.
func parseBlock(b []byte, k *indexBlock, files []FileInfo) ([]TensorInfo, error) {
	if crc.Sum(b) != k.crc {
		return nil, corrupt("the block of %q does not match its CRC", k.first)
	}
	d := decoder{b: b}
	tensors := make([]TensorInfo, 0, min(k.entries, len(b)/4+1))
	for i := 0; i < k.entries && d.err == nil; i++ {
		t := d.tensor(files)
		if (i == 0 && t.Name != k.first) || (i > 0 && tensors[i-1].Name >= t.Name) {
			d.fail("entry %q is out of order", t.Name)
		}
		tensors = append(tensors, t)
	}
	if d.err == nil && len(d.b) != 0 {
		d.fail("%d bytes follow the block of %q", len(d.b), k.first)
	}
	if d.err != nil {
		return nil, d.err
	}
	return tensors, nil
}

func (d *decoder) tensor(files []FileInfo) TensorInfo {
	t := TensorInfo{Name: d.str(MaxNameLen), DType: DType(d.byte())}
	dims := int(d.byte())
	if dims > safetensors.MaxDims {
		d.fail("tensor %q has %d dimensions", t.Name, dims)
		return t
	}
	t.Shape = d.ints(dims)
	if _, err := safetensors.SizeOf(t.DType, t.Shape); err != nil {
		d.fail("tensor %q: %v", t.Name, err)
	}
	for range d.count(18 + 2*dims) {
		s := SliceInfo{File: int(d.uint(math.MaxInt32)), Offset: d.ints(dims), Shape: d.ints(dims)}
		s.Begin = int64(d.uint(math.MaxInt64))
		copy(s.Digest[:], d.bytes(len(s.Digest)))
		if d.err != nil {
			return t
		}
		if err := checkSlice(t.Shape, s.Offset, s.Shape); err != nil {
			d.fail("tensor %q: %v", t.Name, err)
		} else if s.File >= len(files) || !files[s.File].hasTensors() ||
			s.Begin > files[s.File].Size-volume(s.Shape)*int64(t.DType.Size()) {
			d.fail("tensor %q: a slice is past the end of file %d", t.Name, s.File)
		}
		t.Slices = append(t.Slices, s)
	}
	return t
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendInts(b []byte, v []int64) []byte {
	for _, n := range v {
		b = binary.AppendUvarint(b, uint64(n))
	}
	return b
}

// decoder reads fields off b. After the first failure everything it returns is
// zero, and err says why.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = corrupt(format, args...)
	}
	d.b = nil
}

func (d *decoder) bytes(n int) []byte {
	if n > len(d.b) {
		d.fail("cut short")
		return make([]byte, min(n, 64))
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) byte() byte  { return d.bytes(1)[0] }
func (d *decoder) u32() uint32 { return binary.LittleEndian.Uint32(d.bytes(4)) }
func (d *decoder) u64() uint64 { return binary.LittleEndian.Uint64(d.bytes(8)) }

func (d *decoder) uint(limit uint64) uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || v > limit || n != (bits.Len64(v|1)+6)/7 {
		d.fail("a number is cut short, too long, or past %d", limit)
		return 0
	}
	d.b = d.b[n:]
	return v
}

// count reads how many elements follow, each of at least size bytes.
func (d *decoder) count(size int) int { return int(d.uint(uint64(len(d.b) / size))) }

func (d *decoder) str(limit int) string {
	n := int(d.uint(uint64(limit)))
	if n > len(d.b) {
		d.fail("a string is cut short")
		return ""
	}
	return string(bytes.Clone(d.bytes(n)))
}

func (d *decoder) ints(n int) []int64 {
	v := make([]int64, n)
	for i := range v {
		v[i] = int64(d.uint(math.MaxInt64))
	}
	return v
}
