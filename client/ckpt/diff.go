package ckpt

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
)

// DifferenceKind is how a tensor or a blob differs between two checkpoints.
type DifferenceKind string

// The kinds of differences, in the order in which Diff looks for them. It reports the first.
const (
	OnlyInA        DifferenceKind = "only in A"
	OnlyInB        DifferenceKind = "only in B"
	DTypeDiffers   DifferenceKind = "dtype"
	ShapeDiffers   DifferenceKind = "shape"
	ContentDiffers DifferenceKind = "content"
)

// Difference is one tensor or blob that differs between the checkpoints A and B.
type Difference struct {
	Kind DifferenceKind
	// Tensor is the tensor's name; empty for a blob, which Rank saved under the name Blob.
	Tensor string
	Blob   string
	Rank   uint32
	// A and B describe the two sides, such as "F32 [64, 48]" or "17 bytes"; empty where it is
	// missing.
	A, B string
	// Where is a range of the tensor, [0:4, 8:16], that has a differing element; for the kind
	// content of a tensor only.
	Where string
}

// DiffReport is what Diff compared.
type DiffReport struct {
	// Tensors and Blobs count the names that A or B has.
	Tensors, Blobs int
	// Differences counts those that differ, and ByKind how.
	Differences int
	ByKind      map[DifferenceKind]int
	// BytesRead is how much of the parts was read, of both checkpoints together.
	BytesRead int64
}

// Diff compares the tensors and the blobs of two checkpoints, and calls yield with each that
// differs: the tensors in order of name, then the blobs in order of rank and name. An error of
// yield ends it, and Diff returns that error. It is no check of the bytes: see Verify.
//
// The digests of the two indexes decide where both checkpoints cut a tensor in the same slices,
// and for every blob: no byte is read. Digests miss a change within one block of 4 KiB once in
// 2^32; see Digest. Otherwise Diff reads the tensor from both, piece by piece, until a piece
// differs. It needs memory for two pieces of 16 MiB and the blocks of the two indexes.
func Diff(ctx context.Context, a, b *Checkpoint, yield func(Difference) error) (DiffReport, error) {
	d := differ{a: a, b: b, yield: yield, report: DiffReport{ByKind: map[DifferenceKind]int{}}}
	before := a.BytesRead() + b.BytesRead()
	err := d.tensors(ctx)
	if err == nil {
		err = d.blobs(ctx)
	}
	d.report.BytesRead = a.BytesRead() + b.BytesRead() - before
	return d.report, err
}

// differ is one Diff.
type differ struct {
	a, b   *Checkpoint
	yield  func(Difference) error
	report DiffReport
}

func (d *differ) found(x Difference) error {
	d.report.Differences++
	d.report.ByKind[x.Kind]++
	return d.yield(x)
}

// tensors walks both indexes in order of name.
func (d *differ) tensors(ctx context.Context) error {
	ca, cb := tensorCursor{k: d.a}, tensorCursor{k: d.b}
	for {
		a, err := ca.peek(ctx)
		if err != nil {
			return err
		}
		b, err := cb.peek(ctx)
		if err != nil {
			return err
		}
		if a == nil && b == nil {
			return nil
		}
		d.report.Tensors++
		switch {
		case b == nil || a != nil && a.Name < b.Name:
			err = d.found(Difference{Kind: OnlyInA, Tensor: a.Name, A: describeTensor(a)})
			ca.next()
		case a == nil || b.Name < a.Name:
			err = d.found(Difference{Kind: OnlyInB, Tensor: b.Name, B: describeTensor(b)})
			cb.next()
		default:
			err = d.tensor(ctx, a, b)
			ca.next()
			cb.next()
		}
		if err != nil {
			return err
		}
	}
}

// tensor compares two tensors of one name.
func (d *differ) tensor(ctx context.Context, a, b *TensorInfo) error {
	x := Difference{Tensor: a.Name, A: describeTensor(a), B: describeTensor(b)}
	switch {
	case a.DType != b.DType:
		x.Kind = DTypeDiffers
	case !slices.Equal(a.Shape, b.Shape):
		x.Kind = ShapeDiffers
	default:
		where, err := d.content(ctx, a, b)
		if err != nil || where == "" {
			return err
		}
		x.Kind, x.Where = ContentDiffers, where
	}
	return d.found(x)
}

// content returns a range in which the bytes of two tensors of one type and shape differ; "" if
// they are equal.
func (d *differ) content(ctx context.Context, a, b *TensorInfo) (where string, err error) {
	sa, sb := d.a.chosen(a), d.b.chosen(b)
	if sameCuts(sa, sb) && digested(sa) && digested(sb) {
		for i := range sa {
			if sa[i].Digest != sb[i].Digest {
				return region(sa[i].Offset, sa[i].Shape), nil
			}
		}
		return "", nil
	}
	return d.bytes(ctx, a, b)
}

// digested reports whether all slices have digests; those of an adopted file have none.
func digested(list []*SliceInfo) bool {
	return !slices.ContainsFunc(list, func(s *SliceInfo) bool { return s.Digest == Digest{} })
}

// sameCuts reports whether two lists of slices have the same ranges. Both are sorted by range.
func sameCuts(a, b []*SliceInfo) bool {
	return slices.EqualFunc(a, b, func(x, y *SliceInfo) bool {
		return slices.Equal(x.Offset, y.Offset) && slices.Equal(x.Shape, y.Shape)
	})
}

// diffPiece bounds one piece of a tensor that Diff reads, in bytes.
const diffPiece = 16 << 20

// bytes reads both tensors until a piece differs, and returns its range.
func (d *differ) bytes(ctx context.Context, a, b *TensorInfo) (where string, err error) {
	size := min(diffPiece, a.Size())
	bufA, bufB := make([]byte, size), make([]byte, size)
	err = eachPiece(a.Shape, int64(a.DType.Size()), diffPiece, func(offset, shape []int64) (more bool, err error) {
		n := tensorSize(a.DType, shape)
		g, gctx := errgroup.WithContext(ctx)
		g.Go(func() error { return d.a.readSlice(gctx, a, SliceRequest{a.Name, offset, shape, bufA[:n]}) })
		g.Go(func() error { return d.b.readSlice(gctx, b, SliceRequest{b.Name, offset, shape, bufB[:n]}) })
		if err := g.Wait(); err != nil {
			return false, err
		}
		if !bytes.Equal(bufA[:n], bufB[:n]) {
			where = region(offset, shape)
		}
		return where == "", nil
	})
	return where, err
}

// eachPiece cuts a tensor into pieces of at most limit bytes that are contiguous in row-major
// order, and calls yield with each until it returns false or an error. A tensor without elements
// has no piece.
func eachPiece(shape []int64, elem, limit int64, yield func(offset, shape []int64) (bool, error)) error {
	if volume(shape) == 0 {
		return nil
	}
	// The dimensions after cut are whole in every piece. Those before it have one index.
	cut, row := len(shape), elem
	for cut > 0 && row <= limit/shape[cut-1] {
		cut--
		row *= shape[cut]
	}
	if cut == 0 {
		_, err := yield(make([]int64, len(shape)), shape)
		return err
	}
	cut--
	per := max(limit/row, 1)
	for at := make([]int64, len(shape)); ; {
		piece := clone(shape)
		for d := range cut {
			piece[d] = 1
		}
		piece[cut] = min(per, shape[cut]-at[cut])
		if more, err := yield(clone(at), piece); err != nil || !more {
			return err
		}
		at[cut] += per
		for d := cut; at[d] >= shape[d]; d-- {
			if d == 0 {
				return nil
			}
			at[d] = 0
			at[d-1]++
		}
	}
}

// describeTensor writes a tensor's type and shape as Python does: F32 [64, 48].
func describeTensor(t *TensorInfo) string {
	b := fmt.Appendf(nil, "%s [", t.DType)
	for i, n := range t.Shape {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = fmt.Append(b, n)
	}
	return string(append(b, ']'))
}
