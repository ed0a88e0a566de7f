package ckpt

import (
	"context"
	"fmt"
	"slices"

	"github.com/morainefs/moraine"
	"golang.org/x/sync/errgroup"
)

const (
	// readsAtOnce bounds the concurrent reads of parts in one Checkpoint.
	readsAtOnce = 16
	// readPiece bounds one read, in bytes.
	readPiece = 32 << 20
	// directRun is the length from which on a run of bytes is read by itself. Shorter runs are
	// read together, with the bytes between them, in windows of up to windowBytes, as long as no
	// gap exceeds maxWaste.
	directRun   = 256 << 10
	windowBytes = 4 << 20
	maxWaste    = 64 << 10
)

// SliceRequest requests a slice of a tensor, cut in any way.
type SliceRequest struct {
	Name          string
	Offset, Shape []int64
	// Dst receives the elements in row-major order; its length must be exactly theirs.
	Dst []byte
}

// ReadTensor reads a whole tensor.
func (k *Checkpoint) ReadTensor(ctx context.Context, name string) ([]byte, error) {
	t, err := k.Tensor(ctx, name)
	if err != nil {
		return nil, err
	}
	dst := make([]byte, t.Size())
	return dst, k.readSlice(ctx, t, SliceRequest{Name: name, Offset: make([]int64, len(t.Shape)), Shape: t.Shape, Dst: dst})
}

// ReadSlice reads one slice: only the necessary byte ranges, from however many parts. On error
// the content of req.Dst is undefined.
func (k *Checkpoint) ReadSlice(ctx context.Context, req SliceRequest) error {
	t, err := k.Tensor(ctx, req.Name)
	if err != nil {
		return err
	}
	return k.readSlice(ctx, t, req)
}

// Restore reads the slices that a rank needs, several at once, whatever ranks saved them. It
// returns the first error.
func (k *Checkpoint) Restore(ctx context.Context, reqs []SliceRequest) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readsAtOnce)
	for i := range reqs {
		g.Go(func() error { return k.ReadSlice(ctx, reqs[i]) })
	}
	return g.Wait()
}

func (k *Checkpoint) readSlice(ctx context.Context, t *TensorInfo, req SliceRequest) error {
	if err := checkSlice(t.Shape, req.Offset, req.Shape); err != nil {
		return invalid("ckpt.ReadSlice", t.Name, err)
	}
	if want := tensorSize(t.DType, req.Shape); int64(len(req.Dst)) != want {
		return invalid("ckpt.ReadSlice", t.Name, fmt.Errorf("the buffer has %d bytes, the tensor has %d", len(req.Dst), want))
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(readsAtOnce)
	for _, s := range k.chosen(t) {
		p := planSlice(s, int64(t.DType.Size()), req.Offset, req.Shape)
		if p == nil {
			continue
		}
		g.Go(func() error { return k.readPlan(gctx, t, s, p, req.Dst) })
	}
	return g.Wait()
}

// chosen returns the slices of t with one of each set of replicas. The ranks of a restore
// spread their reads over the replicas.
func (k *Checkpoint) chosen(t *TensorInfo) []*SliceInfo {
	var out []*SliceInfo
	for i := 0; i < len(t.Slices); {
		j := i + 1
		for j < len(t.Slices) && slices.Equal(t.Slices[i].Offset, t.Slices[j].Offset) && slices.Equal(t.Slices[i].Shape, t.Slices[j].Shape) {
			j++
		}
		best := i + int(k.prefer)%(j-i)
		for n := i; n < j; n++ {
			if k.node[k.top.files[t.Slices[n].File].Rank] != nil {
				best = n // in the memory of this node
			}
		}
		out = append(out, &t.Slices[best])
		i = j
	}
	return out
}

// readPlan reads the wanted range of one saved slice. It verifies the slice's digest if it read
// all of it as one run; otherwise only the checksums of the stripes protect the bytes.
func (k *Checkpoint) readPlan(ctx context.Context, t *TensorInfo, s *SliceInfo, p *plan, dst []byte) error {
	if k.readFromNode(t, s, p, dst) {
		return nil
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(readsAtOnce)
	p.each(func(op readOp) bool {
		g.Go(func() error {
			return readOpFrom(op, dst, func(p []byte, off int64) error { return k.readFile(gctx, s.File, p, off) })
		})
		return gctx.Err() == nil
	})
	if err := g.Wait(); err != nil {
		return fmt.Errorf("read tensor %q: %w", t.Name, err)
	}
	if !p.whole {
		return nil
	}
	if DigestOf(dst[p.dst:p.dst+p.run]) != s.Digest {
		return &moraine.Error{Op: "ckpt.ReadSlice", Ref: fmt.Sprintf("%s, tensor %q", k.Info.ref(), t.Name), Kind: moraine.Corrupt,
			Err: errorf("%s in %s does not match its digest", region(s.Offset, s.Shape), k.top.files[s.File].Name)}
	}
	return nil
}

// readOpFrom makes one read with read, which fills p from an offset of the file on.
func readOpFrom(op readOp, dst []byte, read func(p []byte, off int64) error) error {
	if len(op.runs) == 1 {
		r := op.runs[0]
		return read(dst[r.dst:r.dst+r.length], r.file)
	}
	first, last := op.runs[0], op.runs[len(op.runs)-1]
	buf := make([]byte, last.file+last.length-first.file)
	if err := read(buf, first.file); err != nil {
		return err
	}
	for _, r := range op.runs {
		copy(dst[r.dst:r.dst+r.length], buf[r.file-first.file:])
	}
	return nil
}

// BlobNames returns the names of the blobs that a rank saved.
func (k *Checkpoint) BlobNames(rank uint32) []string {
	var names []string
	for i := range k.top.files {
		if f := &k.top.files[i]; f.Kind == BlobFile && f.Rank == rank {
			names = append(names, f.Blob)
		}
	}
	return names
}

// ReadBlob reads a blob that a rank saved, and verifies its digest.
func (k *Checkpoint) ReadBlob(ctx context.Context, rank uint32, name string) ([]byte, error) {
	for i := range k.top.files {
		f := &k.top.files[i]
		if f.Kind != BlobFile || f.Rank != rank || f.Blob != name {
			continue
		}
		dst := make([]byte, f.Size)
		if k.blobFromNode(f, dst) {
			return dst, nil
		}
		if err := k.readFile(ctx, i, dst, 0); err != nil {
			return nil, err
		}
		if DigestOf(dst) != f.Digest {
			return nil, &moraine.Error{Op: "ckpt.ReadBlob", Ref: f.Name, Kind: moraine.Corrupt, Err: errorf("the digest differs")}
		}
		return dst, nil
	}
	return nil, &moraine.Error{Op: "ckpt.ReadBlob", Ref: fmt.Sprintf("%s, rank %d, blob %q", k.Info.ref(), rank, name), Kind: moraine.NotFound}
}

func errorf(format string, args ...any) error { return fmt.Errorf(format, args...) }
