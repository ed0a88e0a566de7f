// Package ckpt saves and restores the checkpoints of training runs. A run is a
// directory. Each rank writes one part of a step, as standard safetensors files
// and blobs. The step becomes visible whole, in one log entry. Before that, all
// ranks have sealed their parts, and a mover has checked that the slices cover
// every tensor.
//
// Slices that several ranks have in common are stored once only if the ranks save through the agent of
// their node (RunOptions.Agent). Without agents each rank stores all that it adds.
//
// It does no striping and no retries of single requests: package client does. It does not
// interpret tensors, and reads no environment.
//
// The path of a save: OpenRun joins or makes an attempt (run.go) -> Begin makes
// a Part -> AddTensor copies into the staging arena and computes checksums as
// it copies (stage.go) -> Seal returns. Then the run's goroutine writes the
// part's files, unlinked, and seals the part in the metadata (flush.go) -> the
// mover of the step's job calls CheckStep. It merges the headers of all parts
// into an index or an error (check.go, coverage.go, index.go) -> Wait returns
// the committed step. Back: Resolve finds a step (resolve.go). Restore looks
// the tensors up in the index and reads the necessary byte ranges (restore.go).
//
// Locks: Part.adding may be held when arena.mu or Part.mu is taken; others do not nest.
package ckpt

import (
	"fmt"
	"regexp"
	"unicode/utf8"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
)

// Tensor is one rank's slice of one tensor.
type Tensor struct {
	Name  string
	DType DType
	// Shape is the shape of the slice. No dimensions make a scalar.
	Shape []int64
	// Global is the shape of the whole tensor, and Offset is where the slice begins in it. Both
	// nil: the slice is the whole tensor.
	Global, Offset []int64
	// Data holds the elements of the slice in row-major order, little-endian.
	// AddTensor reads it and keeps no reference.
	Data []byte
}

// Bounds of one part.
const (
	// MaxNameLen bounds the name of a tensor, in bytes.
	MaxNameLen = 1024
	// MaxFiles bounds the files of one rank: its blobs, and as many safetensors files as it has
	// slices of any one tensor.
	MaxFiles = 64
	// MaxWorld bounds the ranks of a step.
	MaxWorld = 1 << 16
)

var blobName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$`)

// IsBlobName reports whether a blob can have a name: letters, digits, '.', '_' and '-', at most 100.
func IsBlobName(name string) bool { return blobName.MatchString(name) }

// partName returns the name of the n-th safetensors file of a rank. There is one, unless the
// rank saves several slices of one tensor: a file contains a name only once.
func partName(rank, world uint32, n int) string {
	if n == 0 {
		return fmt.Sprintf("rank-%05d-of-%05d.safetensors", rank, world)
	}
	return fmt.Sprintf("rank-%05d-of-%05d-%d.safetensors", rank, world, n)
}

func blobFileName(rank, world uint32, name string) string {
	return fmt.Sprintf("rank-%05d-of-%05d.%s.blob", rank, world, name)
}

// normalize fills in Global and Offset and checks everything about t.
func (t *Tensor) normalize() error { return t.normalizeOf(int64(len(t.Data))) }

// normalizeOf is normalize of a tensor whose data are bytes long.
func (t *Tensor) normalizeOf(bytes int64) error {
	switch {
	case t.Name == "" || len(t.Name) > MaxNameLen || !utf8.ValidString(t.Name) || t.Name == "__metadata__":
		return fmt.Errorf("a tensor cannot be named %q", t.Name)
	case t.Global == nil && t.Offset == nil:
		t.Global, t.Offset = t.Shape, make([]int64, len(t.Shape))
	}
	// Copies, because the caller may reuse its own. Never nil, because a scalar's shape is
	// written as [].
	t.Shape, t.Global, t.Offset = clone(t.Shape), clone(t.Global), clone(t.Offset)
	if err := checkSlice(t.Global, t.Offset, t.Shape); err != nil {
		return fmt.Errorf("tensor %q: %w", t.Name, err)
	}
	if _, err := safetensors.SizeOf(t.DType, t.Global); err != nil {
		return fmt.Errorf("tensor %q: %w", t.Name, err)
	}
	size, err := safetensors.SizeOf(t.DType, t.Shape)
	if err != nil {
		return fmt.Errorf("tensor %q: %w", t.Name, err)
	}
	if size != bytes {
		return fmt.Errorf("tensor %q has %d bytes; %s of shape %v has %d", t.Name, bytes, t.DType, t.Shape, size)
	}
	return nil
}

// checkSlice fails unless a slice of shape at offset lies in global.
func checkSlice(global, offset, shape []int64) error {
	if len(global) != len(shape) || len(offset) != len(shape) {
		return fmt.Errorf("shape %v, offset %v and global shape %v differ in dimensions", shape, offset, global)
	}
	for i := range shape {
		if shape[i] < 0 || offset[i] < 0 || global[i] < 0 || offset[i] > global[i] || shape[i] > global[i]-offset[i] {
			return fmt.Errorf("a slice of shape %v at %v lies outside of %v", shape, offset, global)
		}
	}
	return nil
}

func clone(v []int64) []int64 { return append(make([]int64, 0, len(v)), v...) }

func volume(shape []int64) int64 {
	n := int64(1)
	for _, s := range shape {
		n *= s
	}
	return n
}

func invalid(op, ref string, err error) error {
	return &moraine.Error{Op: op, Ref: ref, Kind: moraine.InvalidArgument, Err: err}
}
