package ckpt

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
)

// blobs compares the blobs by the sizes and digests of the two indexes. Of adopted files that hold no
// tensors it compares the bytes.
func (d *differ) blobs(ctx context.Context) error {
	a, b := d.a.blobFiles(), d.b.blobFiles()
	for len(a) > 0 || len(b) > 0 {
		d.report.Blobs++
		o := -1
		switch {
		case len(a) == 0:
			o = 1
		case len(b) > 0:
			o = compareBlobs(a[0], b[0])
		}
		var x Difference
		switch {
		case o < 0:
			x = Difference{Kind: OnlyInA, Blob: blobTitle(a[0]), Rank: blobRank(a[0]), A: describeBlob(a[0])}
		case o > 0:
			x = Difference{Kind: OnlyInB, Blob: blobTitle(b[0]), Rank: blobRank(b[0]), B: describeBlob(b[0])}
		default:
			equal, err := d.sameBlob(ctx, a[0], b[0])
			if err != nil {
				return err
			}
			if equal {
				break
			}
			x = Difference{Kind: ContentDiffers, Blob: blobTitle(a[0]), Rank: blobRank(a[0]), A: describeBlob(a[0]), B: describeBlob(b[0])}
		}
		if x.Kind != "" {
			if err := d.found(x); err != nil {
				return err
			}
		}
		if o <= 0 {
			a = a[1:]
		}
		if o >= 0 {
			b = b[1:]
		}
	}
	return nil
}

// sameBlob reports whether two files of one name have the same bytes.
func (d *differ) sameBlob(ctx context.Context, a, b *FileInfo) (bool, error) {
	if a.Size != b.Size || !a.Adopted() && !b.Adopted() {
		return a.Size == b.Size && a.Digest == b.Digest, nil
	}
	size := min(diffPiece, a.Size)
	bufA, bufB := make([]byte, size), make([]byte, size)
	for off := int64(0); off < a.Size; off += size {
		n := min(size, a.Size-off)
		g, gctx := errgroup.WithContext(ctx)
		g.Go(func() error { return d.a.files.readIntact(gctx, d.a.fileIndex(a), bufA[:n], off) })
		g.Go(func() error { return d.b.files.readIntact(gctx, d.b.fileIndex(b), bufB[:n], off) })
		if err := g.Wait(); err != nil {
			return false, err
		}
		if !bytes.Equal(bufA[:n], bufB[:n]) {
			return false, nil
		}
	}
	return true, nil
}

// fileIndex returns the place of a file of the checkpoint's list.
func (k *Checkpoint) fileIndex(f *FileInfo) int {
	return slices.IndexFunc(k.top.files, func(other FileInfo) bool { return other.Name == f.Name })
}

// blobFiles returns the blobs in order of rank and name, and the adopted files without tensors in
// order of path.
func (k *Checkpoint) blobFiles() []*FileInfo {
	var out []*FileInfo
	for i := range k.top.files {
		if kind := k.top.files[i].Kind; kind == BlobFile || kind == AdoptedFile {
			out = append(out, &k.top.files[i])
		}
	}
	slices.SortFunc(out, compareBlobs)
	return out
}

func compareBlobs(a, b *FileInfo) int {
	return cmp.Or(cmp.Compare(blobRank(a), blobRank(b)), cmp.Compare(blobTitle(a), blobTitle(b)))
}

// blobRank returns the rank that saved a blob; 0 for an adopted file, whose part means nothing.
func blobRank(f *FileInfo) uint32 {
	if f.Adopted() {
		return 0
	}
	return f.Rank
}

func blobTitle(f *FileInfo) string {
	if f.Adopted() {
		return f.Path
	}
	return f.Blob
}

func describeBlob(f *FileInfo) string {
	if f.Size == 1 {
		return "1 byte"
	}
	return fmt.Sprintf("%d bytes", f.Size)
}
