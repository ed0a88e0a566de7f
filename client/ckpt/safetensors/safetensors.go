// Package safetensors reads and writes the header of a safetensors file: the names, types and
// shapes of its tensors and where their bytes are. It moves no payload and does no I/O; package
// ckpt streams the bytes.
//
// The format is 8 bytes of header length (little-endian), a JSON header padded
// with spaces, then the bytes of all tensors without a gap. This package pads
// the header so that the data section starts at a multiple of Alignment. It
// orders tensors so that each whose size is a multiple of Alignment starts at
// one too. Every other starts at a multiple of its element size.
//
// The path of a part: Order(tensors) -> Header.Encode -> package ckpt writes the bytes in that
// order; back: HeaderLen(first 8 bytes) -> Parse(header, file size).
package safetensors

import (
	"fmt"
	"slices"
	"strings"

	"github.com/morainefs/moraine"
)

const (
	// Alignment of the data section in a file written by this package, in bytes.
	Alignment = moraine.BlockSize
	// LengthBytes is the size of the length field at the beginning of a file.
	LengthBytes = 8
	// MaxHeader bounds the JSON header, including padding, in bytes. The reference implementation
	// has the same bound.
	MaxHeader = 100_000_000
	// MaxDims bounds the number of dimensions of a tensor.
	MaxDims = 32

	metadataKey = "__metadata__"
)

// Tensor describes one tensor of a file. Begin and End are the range of its
// bytes, counted from the start of the data section.
type Tensor struct {
	Name  string
	DType DType
	Shape []int64
	Begin int64
	End   int64
}

// Size returns the number of bytes of the tensor.
func (t *Tensor) Size() int64 { return t.End - t.Begin }

// Header is a whole header. Tensors are in order of Begin, and cover the data
// section without gap or overlap.
type Header struct {
	// Metadata are the free strings of the file; nil if there are none.
	Metadata map[string]string
	Tensors  []Tensor
	// DataStart is the offset of the data section in the file. Encode sets it.
	DataStart int64
}

// DataLen returns the number of bytes in the data section.
func (h *Header) DataLen() int64 {
	if len(h.Tensors) == 0 {
		return 0
	}
	return h.Tensors[len(h.Tensors)-1].End
}

// Order sorts tensors into their layout order and sets Begin and End of each from its type and
// shape. First come those whose size is a multiple of Alignment, then the others, wider types
// first, so that all are aligned. It fails, and leaves the offsets undefined, on an unknown
// type, a bad shape, or two tensors of the same name.
func Order(tensors []Tensor) error {
	for i := range tensors {
		n, err := SizeOf(tensors[i].DType, tensors[i].Shape)
		if err != nil {
			return fmt.Errorf("tensor %q: %w", tensors[i].Name, err)
		}
		tensors[i].Begin, tensors[i].End = 0, n
	}
	slices.SortFunc(tensors, compareLayout)
	seen := make(map[string]struct{}, len(tensors))
	var at int64
	for i := range tensors {
		t := &tensors[i]
		if _, dup := seen[t.Name]; dup {
			return fmt.Errorf("tensor %q is listed twice", t.Name)
		}
		seen[t.Name] = struct{}{}
		if t.End > maxFile-at {
			return fmt.Errorf("tensor %q: the file would be larger than 2^60 bytes", t.Name)
		}
		t.Begin, t.End = at, at+t.End
		at = t.End
	}
	return nil
}

// maxFile bounds offsets, so that sums of two of them never overflow.
const maxFile = 1 << 60

// compareLayout orders two tensors whose End is their size.
func compareLayout(a, b Tensor) int {
	wholeA, wholeB := a.End%Alignment == 0, b.End%Alignment == 0
	switch {
	case wholeA != wholeB && wholeA:
		return -1
	case wholeA != wholeB:
		return 1
	case !wholeA && a.DType.Size() != b.DType.Size():
		return b.DType.Size() - a.DType.Size()
	default:
		return strings.Compare(a.Name, b.Name)
	}
}

// SizeOf returns how many bytes a tensor of that type and shape has. A shape
// without dimensions is a scalar; a dimension of 0 makes 0 bytes.
func SizeOf(d DType, shape []int64) (int64, error) {
	if d.Size() == 0 {
		return 0, fmt.Errorf("unknown type %d", d)
	}
	if len(shape) > MaxDims {
		return 0, fmt.Errorf("%d dimensions; %d at most", len(shape), MaxDims)
	}
	n, empty := int64(d.Size()), false
	for _, s := range shape {
		if s < 0 {
			return 0, fmt.Errorf("shape %v has a negative dimension", shape)
		}
		if s == 0 {
			empty = true
			continue
		}
		if n > maxFile/s {
			return 0, fmt.Errorf("shape %v has more than 2^60 bytes", shape)
		}
		n *= s
	}
	if empty {
		return 0, nil
	}
	return n, nil
}
