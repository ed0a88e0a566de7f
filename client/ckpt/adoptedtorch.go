package ckpt

import (
	"bytes"
	"context"
	"strings"
)

// torchSuffixes are those of files that torch.save writes: parts of Megatron, and the optimizer and the state of
// the random numbers of others.
var torchSuffixes = []string{".pt", ".pth", ".bin"}

// checkTorchFiles checks the files of torch.save in the directory, whatever its format.
func (s *adoptedStep) checkTorchFiles(ctx context.Context) error {
	for i := range s.files {
		for _, suffix := range torchSuffixes {
			if !strings.HasSuffix(s.files[i].Path, suffix) {
				continue
			}
			if err := s.checkTorchFile(ctx, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkTorchFile checks that a file of torch.save has its end: it is a zip archive, and the record of
// its end is last. A file of another format is not checked, but it has bytes.
func (s *adoptedStep) checkTorchFile(ctx context.Context, i int) error {
	const endRecord = 22 // bytes
	f := &s.files[i]
	if f.Size == 0 {
		return verdict("file %s is empty", f.Path)
	}
	r, err := s.open(ctx, i)
	if err != nil {
		return err
	}
	defer r.Close()
	head, tail := make([]byte, min(4, f.Size)), make([]byte, min(endRecord, f.Size))
	if err := r.ReadRange(ctx, head, 0); err != nil {
		return err
	}
	if !bytes.Equal(head, []byte("PK\x03\x04")) {
		return nil
	}
	if err := r.ReadRange(ctx, tail, f.Size-int64(len(tail))); err != nil {
		return err
	}
	if !bytes.HasPrefix(tail, []byte("PK\x05\x06")) {
		return verdict("file %s is cut short: the end of its archive is missing", f.Path)
	}
	return nil
}
