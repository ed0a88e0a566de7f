package ckpt

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"slices"
	"sync"

	"github.com/morainefs/moraine"
	"golang.org/x/sync/errgroup"
)

// Report is what Verify has read and found intact.
type Report struct {
	Files, Tensors, Slices int
	Bytes                  int64
	// FromObject of Bytes came from the bucket, the others from chunkservers.
	FromObject int64
	// Undigested of Bytes are of adopted files, of which the step has no digest: their bytes are those
	// that the checksums of their chunks describe.
	Undigested int64
	// Digest of all parts, by rank; it equals the service's record.
	Digest [sha256.Size]byte
}

const (
	// verifyPiece is how many bytes Verify reads at a time of each file, and verifyAtOnce how
	// many files it reads at once.
	verifyPiece  = 8 << 20
	verifyAtOnce = 4
)

// Verify reads every byte of the checkpoint, each against the checksums of its chunk. It verifies the digest of each slice or blob, the
// CRC of each file, and the header digests of the index. At the end it verifies the digest of
// all parts that the service recorded. The first difference ends it with Corrupt, naming the
// file.
func (k *Checkpoint) Verify(ctx context.Context) (Report, error) {
	rep := Report{Files: len(k.top.files)}
	byFile := make([][]SliceInfo, len(k.top.files))
	err := k.Tensors(ctx, func(t *TensorInfo) error {
		rep.Tensors++
		for _, s := range t.Slices {
			rep.Slices++
			// From here on Shape is only the number of bytes.
			s.Shape = []int64{tensorSize(t.DType, s.Shape)}
			byFile[s.File] = append(byFile[s.File], s)
		}
		return nil
	})
	if err != nil {
		return rep, err
	}
	var mu sync.Mutex
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(verifyAtOnce)
	for i := range k.top.files {
		g.Go(func() error {
			n, err := k.verifyFile(gctx, i, byFile[i])
			inObject := err == nil && n > 0 && k.files.levelOf(gctx, i, 0, n) == moraine.Object
			mu.Lock()
			defer mu.Unlock()
			rep.Bytes += n
			if inObject {
				rep.FromObject += n
			}
			if k.top.files[i].Adopted() {
				rep.Undigested += n
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return rep, err
	}
	rep.Digest = k.stepDigest()
	if len(k.Info.Digest) > 0 && !bytes.Equal(rep.Digest[:], k.Info.Digest) {
		return rep, &moraine.Error{Op: "ckpt.Verify", Ref: k.Info.ref(), Kind: moraine.Corrupt,
			Err: errorf("the parts have digest %x, the metadata has %x", rep.Digest, k.Info.Digest)}
	}
	return rep, nil
}

// digestRanks is how many ranks the service folds into one digest before it folds those
// digests.
const digestRanks = 1024

// stepDigest folds the parts' digests, by rank.
func (k *Checkpoint) stepDigest() [sha256.Size]byte {
	step, block := sha256.New(), sha256.New()
	files := k.top.files
	for rank := range k.top.world {
		n := 0
		for n < len(files) && files[n].Rank == rank {
			n++
		}
		d := digestOfPart(files[:n])
		files = files[n:]
		block.Write(d[:])
		if rank%digestRanks == digestRanks-1 || rank == k.top.world-1 {
			step.Write(block.Sum(nil))
			block.Reset()
		}
	}
	return [sha256.Size]byte(step.Sum(nil))
}

// digestOfPart computes the digest of the part with these files.
func digestOfPart(files []FileInfo) [sha256.Size]byte {
	if len(files) > 0 && files[0].Adopted() {
		return adoptedDigest(files)
	}
	var roots [][sha256.Size]byte
	for i := range files {
		if files[i].Kind == TensorFile {
			roots = append(roots, files[i].Root)
		}
	}
	return partDigest(roots)
}

// verifyFile reads file i, whose slices are given, and returns its length.
func (k *Checkpoint) verifyFile(ctx context.Context, i int, list []SliceInfo) (int64, error) {
	f := &k.top.files[i]
	bad := func(format string, args ...any) (int64, error) {
		return 0, &moraine.Error{Op: "ckpt.Verify", Ref: f.Name, Kind: moraine.Corrupt, Err: errorf(format, args...)}
	}
	slices.SortFunc(list, func(a, b SliceInfo) int { return cmp.Compare(a.Begin, b.Begin) })
	v := fileVerifier{slices: list}
	v.dataStart = f.Size
	if len(list) > 0 {
		v.dataStart = list[0].Begin
	}
	buf := make([]byte, min(verifyPiece, f.Size))
	for off := int64(0); off < f.Size; off += int64(len(buf)) {
		buf = buf[:min(int64(len(buf)), f.Size-off)]
		if err := k.files.read(ctx, i, buf, off); err != nil {
			return 0, err
		}
		if s := v.write(buf, off); s != nil {
			return bad("the slice at byte %d does not match its digest", s.Begin)
		}
	}
	digest, sum := v.file.sum()
	switch {
	case f.Adopted():
		return f.Size, nil // reading it was the check
	case f.Kind == TensorFile && v.root.root() != f.Root:
		return bad("the header does not match its digest")
	case f.Kind == BlobFile && digest != f.Digest:
		return bad("the blob does not match its digest")
	case sum != f.CRC:
		return bad("the file does not match its CRC")
	case len(v.slices) != 0:
		return bad("%d slices lie past the end", len(v.slices))
	}
	return f.Size, nil
}

// fileVerifier verifies a file whose bytes arrive in order.
type fileVerifier struct {
	file      summer
	root      summer // of the bytes before dataStart
	dataStart int64
	slices    []SliceInfo // not complete yet, in order of Begin; Shape[0] is the length
	slice     summer      // of slices[0]
}

// write takes the bytes at off. It returns a slice that ended in them and does not match its
// digest.
func (v *fileVerifier) write(p []byte, off int64) *SliceInfo {
	v.file.write(p)
	if n := v.dataStart - off; n > 0 {
		n = min(n, int64(len(p)))
		v.root.write(p[:n])
		p, off = p[n:], off+n
	}
	for len(v.slices) > 0 && len(p) > 0 {
		s := &v.slices[0]
		if skip := s.Begin + v.slice.size - off; skip > 0 {
			skip = min(skip, int64(len(p)))
			p, off = p[skip:], off+skip
			continue
		}
		n := min(s.Shape[0]-v.slice.size, int64(len(p)))
		v.slice.write(p[:n])
		p, off = p[n:], off+n
		if v.slice.size < s.Shape[0] {
			return nil
		}
		d, _ := v.slice.sum()
		v.slice = summer{}
		if d != s.Digest && s.Digest != (Digest{}) {
			return s
		}
		v.slices = v.slices[1:]
	}
	return nil
}
