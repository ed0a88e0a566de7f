package ckpt

import (
	"context"
	"crypto/sha256"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
	"github.com/morainefs/moraine/internal/adopted"
	"github.com/morainefs/moraine/transport/wire"
)

// The files of an adopted step are clones, so they do not change while they are checked. Only the
// files that say what belongs to the checkpoint are read, and the headers of safetensors files.

// adoptedStep is the step of a directory that a framework wrote, while it is checked.
type adoptedStep struct {
	c     cluster
	files []FileInfo
	inode []moraine.InodeID // of each file
	at    map[string]int    // by path
}

// foldAdopted checks that the files of a step are a whole checkpoint, and returns the top of the index and the tensors.
func foldAdopted(ctx context.Context, c cluster, step *wire.Step, parts []*wire.Part) (*indexTop, map[string]*coverage, error) {
	if len(parts) != int(step.GetWorld()) {
		return nil, nil, verdict("%d parts of %d", len(parts), step.GetWorld())
	}
	s := &adoptedStep{c: c, at: map[string]int{}}
	for i, p := range parts {
		if err := s.addPart(uint32(i), p); err != nil {
			return nil, nil, err
		}
	}
	byName := map[string]*coverage{}
	var err error
	switch f := step.GetAdopted().GetFormat(); f {
	case wire.CheckpointFormat_CHECKPOINT_FORMAT_DCP:
		err = s.checkDCP(ctx)
	case wire.CheckpointFormat_CHECKPOINT_FORMAT_MEGATRON:
		err = s.checkMegatron(ctx)
	case wire.CheckpointFormat_CHECKPOINT_FORMAT_HF:
		err = s.checkHF(ctx, byName)
	default:
		err = verdict("checkpoint format %d is unknown", f)
	}
	if err == nil {
		err = s.checkTorchFiles(ctx)
	}
	if err != nil {
		return nil, nil, err
	}
	top := topOf(step)
	top.files = s.files
	return top, byName, nil
}

// addPart adds the files of a part, and compares them with what the service recorded.
func (s *adoptedStep) addPart(rank uint32, p *wire.Part) error {
	if p.GetRank() != rank {
		return verdict("part %d is of rank %d", rank, p.GetRank())
	}
	first := len(s.files)
	for _, f := range p.GetFiles() {
		path, err := adopted.Path(f.GetName())
		if err != nil {
			return verdict("file %s: %v", f.GetName(), err)
		}
		s.at[path] = len(s.files)
		s.files = append(s.files, FileInfo{Name: f.GetName(), Path: path, Kind: AdoptedFile, Rank: rank, Size: int64(f.GetSize())})
		s.inode = append(s.inode, moraine.InodeID(f.GetInode()))
	}
	if d := adoptedDigest(s.files[first:]); !slices.Equal(d[:], p.GetDigest()) {
		return verdict("part %d was sealed with digest %x; its files have %x", rank, p.GetDigest(), d)
	}
	return nil
}

// adoptedDigest is the digest of the part with these files. It covers names and sizes.
func adoptedDigest(files []FileInfo) [sha256.Size]byte {
	list := make([]adopted.File, len(files))
	for i := range files {
		list[i] = adopted.File{Name: files[i].Name, Size: uint64(files[i].Size)}
	}
	return adopted.Digest(list)
}

// open opens a file. The caller closes the reader.
func (s *adoptedStep) open(ctx context.Context, i int) (fileReader, error) {
	r, err := s.c.open(ctx, s.inode[i])
	if err != nil {
		return nil, err
	}
	if r.Size() != s.files[i].Size {
		r.Close()
		return nil, verdict("file %s has %d bytes, not %d", s.files[i].Path, r.Size(), s.files[i].Size)
	}
	return r, nil
}

// read reads a whole file of at most limit bytes. ok is false if there is none.
func (s *adoptedStep) read(ctx context.Context, path string, limit int64) (b []byte, ok bool, err error) {
	i, ok := s.at[path]
	if !ok {
		return nil, false, nil
	}
	if size := s.files[i].Size; size > limit {
		return nil, true, verdict("file %s has %d bytes, %d at most: it is not checked, so the directory is not adopted", path, size, limit)
	}
	r, err := s.open(ctx, i)
	if err != nil {
		return nil, true, err
	}
	defer r.Close()
	b = make([]byte, s.files[i].Size)
	return b, true, r.ReadRange(ctx, b, 0)
}

// needs fails unless there is a file of at least size bytes. by names the file that lists it.
func (s *adoptedStep) needs(path string, size int64, by string) error {
	i, ok := s.at[path]
	switch {
	case !ok:
		return verdict("file %s, which %s lists, is missing", path, by)
	case s.files[i].Size < size:
		return verdict("file %s has %d bytes, but %s needs %d", path, s.files[i].Size, by, size)
	}
	return nil
}

// header reads the header of a safetensors file. The caller releases its share of the budget.
func (s *adoptedStep) header(ctx context.Context, i int, budget *headerBudget) (_ *safetensors.Header, release func(), err error) {
	r, err := s.open(ctx, i)
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	first := make([]byte, min(r.Size(), safetensors.LengthBytes))
	if err := r.ReadRange(ctx, first, 0); err != nil {
		return nil, nil, err
	}
	n, err := headerLen(r, first)
	if err != nil {
		return nil, nil, named(err, s.files[i].Path)
	}
	taken, err := budget.take(ctx, n)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			taken() // a return with an error has set release to nil
		}
	}()
	b, err := readHeader(ctx, r, nil, n)
	if err != nil {
		return nil, nil, named(err, s.files[i].Path)
	}
	h, err := safetensors.Parse(b, r.Size())
	if err != nil {
		return nil, nil, verdict("file %s: %v", s.files[i].Path, err)
	}
	return h, taken, nil
}
