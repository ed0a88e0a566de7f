package ckpt

import "github.com/morainefs/moraine/internal/adopted"

// IndexName is the name of the index in a step's directory.
const IndexName = adopted.IndexName

// The format of the index has blocks of tensors sorted by name (indexblock.go), a top
// (indextop.go), and a footer of fixed size (indexfooter.go). The top has the files of the step and
// the first name of each block.
// docs/formats/checkpoint-index.md describes it.
const (
	indexMagic   = "MRNCKIDX"
	indexVersion = 1
	footerSize   = 64
	// A block ends when its entries have blockTarget bytes, or its tensors blockSlices slices. A
	// tensor is never split, so a block may be larger.
	blockTarget = 64 << 10
	blockSlices = 256 << 10
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
	// Root is the root of everything before the data, for a TensorFile: see headerRoot.
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
