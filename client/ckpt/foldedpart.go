package ckpt

import (
	"context"
	"crypto/sha256"
	"slices"

	"github.com/morainefs/moraine/transport/wire"
)

// foldedPart is one rank's part as its headers describe it.
type foldedPart struct {
	rank    uint32
	files   []FileInfo
	headers []*partHeader // of the first files of the list
}

// read reads the headers of a part and compares them with what the service recorded.
func (f *foldedPart) read(ctx context.Context, r *headerReader, step *wire.Step, p *wire.Part) error {
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
		h, err := r.read(ctx, file)
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
