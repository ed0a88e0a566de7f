package ckpt

import (
	"context"
	"fmt"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"golang.org/x/sync/errgroup"
)

// wanted is a range of one saved slice, and where its bytes go.
type wanted struct {
	t *TensorInfo
	// copies are the slices that have the range, with the same bytes.
	copies        []*SliceInfo
	offset, shape []int64
	dst           []byte
}

// plan plans the read from one of the copies; nil if there is nothing to read.
func (w *wanted) plan(s *SliceInfo) *plan {
	return planSlice(s, int64(w.t.DType.Size()), w.offset, w.shape)
}

// copiesOf returns the slices of t, as lists of copies. The ranks of a restore spread their reads
// over the copies. Where the memory of this node has a slice, it stands for each copy.
func (k *Checkpoint) copiesOf(t *TensorInfo) [][]*SliceInfo {
	var out [][]*SliceInfo
	for i := 0; i < len(t.Slices); {
		j := i + 1
		for j < len(t.Slices) && slices.Equal(t.Slices[i].Offset, t.Slices[j].Offset) && slices.Equal(t.Slices[i].Shape, t.Slices[j].Shape) {
			j++
		}
		best := i + int(k.prefer)%(j-i)
		copies := make([]*SliceInfo, 0, j-i)
		for n := range j - i {
			copies = append(copies, &t.Slices[i+(best-i+n)%(j-i)])
		}
		out = append(out, copies)
		i = j
	}
	return out
}

// chosen returns the slices of t with one of each list of copies.
func (k *Checkpoint) chosen(t *TensorInfo) []*SliceInfo {
	var out []*SliceInfo
	for _, copies := range k.copiesOf(t) {
		out = append(out, copies[0])
	}
	return out
}

// readWanted reads the range from the first copy that is intact.
func (k *Checkpoint) readWanted(ctx context.Context, w *wanted) (err error) {
	for _, s := range w.copies {
		p := w.plan(s)
		if p == nil {
			return nil
		}
		if rerr := k.readCopy(ctx, w.t, s, p, w.dst); rerr == nil {
			return nil
		} else if err == nil || !isDamage(rerr) {
			err = rerr
		}
		if !isDamage(err) {
			return err
		}
	}
	return err
}

// readCopy reads the range of one copy from the nearest level that has it.
func (k *Checkpoint) readCopy(ctx context.Context, t *TensorInfo, s *SliceInfo, p *plan, dst []byte) error {
	if k.readFromNode(ctx, t, s, p, dst) {
		return nil
	}
	sums := p.sums(dst)
	g, gctx := errgroup.WithContext(crc.WithSums(ctx, sums))
	g.SetLimit(readsAtOnce)
	p.each(dst, k.opts.OverRead, func(w window) bool {
		g.Go(func() error {
			return k.readWindow(gctx, w, func(p []byte, off int64) error { return k.files.readIntact(gctx, s.File, p, off) })
		})
		return gctx.Err() == nil
	})
	if err := g.Wait(); err != nil {
		return fmt.Errorf("read tensor %q: %w", t.Name, err)
	}
	return k.checkDigest(ctx, t, s, p, sums)
}

// checkDigest compares what was read of a slice with the slice's digest, if it is all of the slice
// and contiguous. Otherwise, and in an adopted file, only the checksums of the stripes protect the
// bytes. sums are those of the bytes, by plan.sums.
func (k *Checkpoint) checkDigest(ctx context.Context, t *TensorInfo, s *SliceInfo, p *plan, sums *crc.Sums) error {
	if !p.whole || s.Digest == (Digest{}) || digestBlocks(sums.Blocks(), p.run) == s.Digest {
		return nil
	}
	err := &moraine.Error{Op: "ckpt.ReadSlice", Ref: fmt.Sprintf("%s, tensor %q", k.Info.ref(), t.Name), Kind: moraine.Corrupt,
		Err: errorf("%s in %s does not match its digest", region(s.Offset, s.Shape), k.top.files[s.File].Name)}
	k.files.report(BadRange{File: k.top.files[s.File].Name, Offset: s.Begin, Bytes: p.run, Level: k.files.levelOf(ctx, s.File, s.Begin, p.run), Err: err})
	return err
}
