package ckpt

import (
	"context"
	"fmt"

	"github.com/morainefs/moraine"
)

// readsAtOnce bounds the concurrent reads of parts in one Checkpoint.
const readsAtOnce = 16

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

// ReadSlice reads one slice: only the necessary byte ranges, from however many parts. Bytes that
// are corrupt or lost at one level come from the next; see BadRanges. On error the content of
// req.Dst is undefined.
func (k *Checkpoint) ReadSlice(ctx context.Context, req SliceRequest) error {
	return k.Restore(ctx, []SliceRequest{req})
}

// Restore is Plan and Run.
func (k *Checkpoint) Restore(ctx context.Context, reqs []SliceRequest) error {
	p, err := k.Plan(ctx, reqs)
	if err != nil {
		return err
	}
	return p.Run(ctx)
}

// readSlice is ReadSlice of a tensor that is known.
func (k *Checkpoint) readSlice(ctx context.Context, t *TensorInfo, req SliceRequest) error {
	list, err := k.wantedOf(t, &req)
	if err != nil {
		return err
	}
	return k.readAll(ctx, list)
}

// wantedOf returns what to read of the saved slices for a request.
func (k *Checkpoint) wantedOf(t *TensorInfo, req *SliceRequest) ([]*wanted, error) {
	if err := checkSlice(t.Shape, req.Offset, req.Shape); err != nil {
		return nil, invalid("ckpt.ReadSlice", t.Name, err)
	}
	if want := tensorSize(t.DType, req.Shape); int64(len(req.Dst)) != want {
		return nil, invalid("ckpt.ReadSlice", t.Name, fmt.Errorf("the buffer has %d bytes, the slice has %d", len(req.Dst), want))
	}
	var list []*wanted
	for _, copies := range k.copiesOf(t) {
		w := &wanted{t: t, copies: copies, offset: req.Offset, shape: req.Shape, dst: req.Dst}
		if w.plan(copies[0]) != nil {
			list = append(list, w)
		}
	}
	return list, nil
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
	i, err := findBlob(k, rank, name)
	if err != nil {
		return nil, err
	}
	dst := make([]byte, k.top.files[i].Size)
	if err := readBlob(ctx, k, i, dst); err != nil {
		return nil, err
	}
	return dst, nil
}

// ReadBlobInto is ReadBlob into dst, whose length must be exactly the blob's: otherwise it fails with
// InvalidArgument, and reads nothing. On any other error the content of dst is undefined.
func (k *Checkpoint) ReadBlobInto(ctx context.Context, rank uint32, name string, dst []byte) error {
	i, err := findBlob(k, rank, name)
	if err != nil {
		return err
	}
	if f := &k.top.files[i]; f.Size != int64(len(dst)) {
		return invalid("ckpt.ReadBlobInto", f.Name, fmt.Errorf("the blob has %d bytes, its place %d", f.Size, len(dst)))
	}
	return readBlob(ctx, k, i, dst)
}

// findBlob returns the number of the file of a blob.
func findBlob(k *Checkpoint, rank uint32, name string) (int, error) {
	for i := range k.top.files {
		if f := &k.top.files[i]; f.Kind == BlobFile && f.Rank == rank && f.Blob == name {
			return i, nil
		}
	}
	return 0, &moraine.Error{Op: "ckpt.ReadBlob", Ref: fmt.Sprintf("%s, rank %d, blob %q", k.Info.ref(), rank, name), Kind: moraine.NotFound}
}

// readBlob fills dst with the blob of a file.
func readBlob(ctx context.Context, k *Checkpoint, i int, dst []byte) error {
	f := &k.top.files[i]
	if blobFromNode(k, f, dst) {
		return nil
	}
	if err := k.files.readIntact(ctx, i, dst, 0); err != nil {
		return err
	}
	if DigestOf(dst) != f.Digest {
		err := &moraine.Error{Op: "ckpt.ReadBlob", Ref: f.Name, Kind: moraine.Corrupt, Err: errorf("the digest differs")}
		k.files.report(BadRange{File: f.Name, Bytes: f.Size, Level: k.files.levelOf(ctx, i, 0, f.Size), Err: err})
		return err
	}
	return nil
}

func errorf(format string, args ...any) error { return fmt.Errorf(format, args...) }
