package ckpt

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/transport/wire"
	"golang.org/x/sync/errgroup"
)

const (
	// partsPage is how many parts one request lists.
	partsPage = 500
	// headersAtOnce bounds the headers read at once. headerGuess is how much of a file is read
	// first: most headers are shorter.
	headersAtOnce = 32
	headerGuess   = 64 << 10
)

// Verdict is the cause in the error of a step that can never be committed: reading it again
// will not help.
type Verdict struct{ Reason string }

// Error returns the reason.
func (v *Verdict) Error() string { return v.Reason }

func verdict(format string, args ...any) error {
	return &Verdict{fmt.Sprintf(format, args...)}
}

// checkStep is CheckStep over any cluster.
func checkStep(ctx context.Context, c cluster, key *wire.StepKey) (*wire.PartFile, error) {
	step, err := getStep(ctx, c, key)
	if err != nil {
		return nil, err
	}
	parts, err := listParts(ctx, c, key)
	if err != nil {
		return nil, err
	}
	fold := foldParts
	if step.GetAdopted() != nil {
		fold = foldAdopted
	}
	index, err := fold(ctx, c, step, parts)
	if v := (*Verdict)(nil); errors.As(err, &v) {
		return nil, &moraine.Error{Op: "ckpt.CheckStep", Ref: fmt.Sprintf("step %d", key.Step), Kind: moraine.Incomplete, Err: err}
	}
	if err != nil {
		return nil, err
	}
	level := moraine.NVMe
	if step.GetBelowNvme() > 0 {
		level = moraine.Memory // the index need not be safer than the parts
	}
	w, err := c.create(ctx, moraine.InodeID(step.GetDir()), level)
	if err != nil {
		return nil, err
	}
	defer w.Abort()
	sum := crc.Sum(index)
	if _, err := w.Write(index); err != nil {
		return nil, err
	}
	done, err := w.Commit(ctx)
	if err != nil {
		return nil, err
	}
	if done.crc != sum || done.size != int64(len(index)) {
		return nil, &moraine.Error{Op: "ckpt.CheckStep", Ref: IndexName, Kind: moraine.IOError, Err: errors.New("the index changed in memory while it was written")}
	}
	return &wire.PartFile{Inode: uint64(done.inode), Name: IndexName, Crc: sum, Size: uint64(len(index))}, nil
}

func listParts(ctx context.Context, c cluster, key *wire.StepKey) ([]*wire.Part, error) {
	var parts []*wire.Part
	for after := uint32(0); ; {
		resp, err := c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ListParts{ListParts: &wire.ListParts{
			Key: key, After: after, Limit: partsPage}}})
		if err != nil {
			return nil, err
		}
		page := resp.GetParts()
		parts = append(parts, page.GetParts()...)
		if !page.GetMore() || len(page.GetParts()) == 0 {
			return parts, nil
		}
		after = page.GetParts()[len(page.GetParts())-1].GetRank() + 1
	}
}

// foldParts reads the headers of all parts and returns the encoded index.
func foldParts(ctx context.Context, c cluster, step *wire.Step, parts []*wire.Part) ([]byte, error) {
	world := step.GetWorld()
	if len(parts) != int(world) {
		return nil, verdict("%d parts of %d ranks", len(parts), world)
	}
	folded := make([]foldedPart, len(parts))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(headersAtOnce)
	for i, p := range parts {
		if p.GetRank() != uint32(i) {
			return nil, verdict("part %d is of rank %d", i, p.GetRank())
		}
		g.Go(func() error { return folded[i].read(gctx, c, step, p) })
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	top := topOf(step)
	byName := make(map[string]*coverage)
	for i := range folded {
		if err := folded[i].merge(top, byName, uint32(i)); err != nil {
			return nil, err
		}
	}
	return indexOf(top, byName)
}

// topOf returns the top of a step's index without its files.
func topOf(step *wire.Step) *indexTop {
	top := &indexTop{world: step.GetWorld()}
	top.key.Run, top.key.Attempt, top.key.Step = step.GetKey().GetRun(), step.GetKey().GetAttempt(), step.GetKey().GetStep()
	return top
}

// indexOf checks that the slices cover all tensors, and encodes the index.
func indexOf(top *indexTop, byName map[string]*coverage) ([]byte, error) {
	tensors := make([]TensorInfo, 0, len(byName))
	for _, cov := range byName {
		t, err := cov.check()
		if err != nil {
			return nil, &Verdict{err.Error()}
		}
		tensors = append(tensors, t)
	}
	slices.SortFunc(tensors, func(a, b TensorInfo) int { return strings.Compare(a.Name, b.Name) })
	index, err := encodeIndex(top, tensors)
	if err != nil {
		return nil, &Verdict{err.Error()}
	}
	return index, nil
}

// foldedPart is one rank's part as its headers describe it.
type foldedPart struct {
	files   []FileInfo
	headers []*partHeader // of the first files of the list
}

// read reads the headers of a part and compares them with what the service recorded.
func (f *foldedPart) read(ctx context.Context, c cluster, step *wire.Step, p *wire.Part) error {
	byName := make(map[string]*wire.PartFile, len(p.GetFiles()))
	for _, file := range p.GetFiles() {
		byName[file.GetName()] = file
	}
	var roots [][sha256.Size]byte
	for n := 0; ; n++ {
		name := partName(p.GetRank(), step.GetWorld(), n)
		file, ok := byName[name]
		if !ok {
			break
		}
		delete(byName, name)
		h, err := readPartHeader(ctx, c, file)
		if err == nil {
			if e := h.belongs(step.GetKey(), p.GetRank(), step.GetWorld(), n); e != nil {
				err = &Verdict{e.Error()}
			}
		}
		if err != nil {
			return err
		}
		roots = append(roots, h.root)
		f.headers = append(f.headers, h)
		f.files = append(f.files, FileInfo{Name: name, Kind: TensorFile, Rank: p.GetRank(),
			Size: int64(file.GetSize()), CRC: file.GetCrc(), Root: h.root})
	}
	if len(roots) == 0 {
		return verdict("rank %d has no file %s", p.GetRank(), partName(p.GetRank(), step.GetWorld(), 0))
	}
	if d := partDigest(roots); !slices.Equal(d[:], p.GetDigest()) {
		return verdict("rank %d sealed its part with digest %x; its files have %x", p.GetRank(), p.GetDigest(), d)
	}
	return f.addBlobs(byName, p.GetRank(), step.GetWorld())
}

// addBlobs matches the blobs that the first header names with the remaining files.
func (f *foldedPart) addBlobs(left map[string]*wire.PartFile, rank, world uint32) error {
	blobs := f.headers[0].meta.Blobs
	names := make([]string, 0, len(blobs))
	for name := range blobs {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fileName := blobFileName(rank, world, name)
		file, ok := left[fileName]
		d, err := parseDigest(blobs[name].Digest)
		if !ok || err != nil || int64(file.GetSize()) != blobs[name].Size {
			return verdict("rank %d: blob %q is not the one its part names", rank, name)
		}
		delete(left, fileName)
		f.files = append(f.files, FileInfo{Name: fileName, Kind: BlobFile, Rank: rank, Size: blobs[name].Size,
			CRC: file.GetCrc(), Blob: name, Digest: d})
	}
	for name := range left {
		return verdict("rank %d: file %s is no part of it", rank, name)
	}
	return nil
}

// merge adds a part's files and slices to those of lower ranks.
func (f *foldedPart) merge(top *indexTop, byName map[string]*coverage, rank uint32) error {
	base := len(top.files)
	top.files = append(top.files, f.files...)
	of := func(name string) *coverage {
		cov := byName[name]
		if cov == nil {
			cov = &coverage{name: name}
			byName[name] = cov
		}
		return cov
	}
	for n, h := range f.headers {
		for i := range h.shared {
			s := &h.shared[i]
			err := of(s.Name).share(rank, s.by, s.DType, s.Global, SliceInfo{Offset: s.Offset, Shape: s.Shape, Digest: s.Digest})
			if err != nil {
				return &Verdict{err.Error()}
			}
		}
		for i := range h.slices {
			s := &h.slices[i]
			err := of(s.Name).add(rank, s.DType, s.Global, SliceInfo{File: base + n, Offset: s.Offset, Shape: s.Shape, Begin: s.Begin, Digest: s.Digest})
			if err != nil {
				return &Verdict{err.Error()}
			}
		}
	}
	return nil
}

// readPartHeader reads only the header of one file.
func readPartHeader(ctx context.Context, c cluster, file *wire.PartFile) (*partHeader, error) {
	r, err := c.open(ctx, moraine.InodeID(file.GetInode()))
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if r.Size() != int64(file.GetSize()) {
		return nil, verdict("file %s has %d bytes, not %d", file.GetName(), r.Size(), file.GetSize())
	}
	b, err := readHeader(ctx, r)
	if err != nil {
		return nil, named(err, file.GetName())
	}
	h, err := parsePart(b, r.Size())
	if err != nil {
		return nil, verdict("file %s: %v", file.GetName(), err)
	}
	return h, nil
}

// named adds the file's name to a verdict.
func named(err error, name string) error {
	if v := (*Verdict)(nil); errors.As(err, &v) {
		return verdict("file %s: %s", name, v.Reason)
	}
	return err
}

// readHeader reads everything of a safetensors file before its data.
func readHeader(ctx context.Context, r fileReader) ([]byte, error) {
	b := make([]byte, min(r.Size(), headerGuess))
	if err := r.ReadRange(ctx, b, 0); err != nil {
		return nil, err
	}
	n, err := safetensors.HeaderLen(b)
	if err != nil || n > r.Size() {
		return nil, verdict("no safetensors header: %v", err)
	}
	if have := int64(len(b)); n > have {
		b = append(b, make([]byte, n-have)...)
		if err := r.ReadRange(ctx, b[have:], have); err != nil {
			return nil, err
		}
	}
	return b[:n], nil
}
