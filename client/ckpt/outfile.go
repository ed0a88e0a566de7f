package ckpt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/transport/wire"
)

// givePiece is how many bytes of a file are written at once, and counted.
const givePiece = 8 << 20

// outFile is one file of a part, ready to write.
type outFile struct {
	name   string
	header []byte // of a safetensors file
	bytes  []*staged
	names  []string // names of the tensors or of the blob, one for each of bytes
}

// write writes one file of s and commits it, unlinked.
func (f *outFile) write(ctx context.Context, s *Part, step *wire.Step) (*wire.PartFile, committed, error) {
	level := cmp.Or(s.opts.Level, moraine.NVMe)
	if step.GetStaysInMemory() {
		level = moraine.Memory
	}
	w, err := s.run.c.create(ctx, moraine.InodeID(step.GetDir()), level, step.GetStaysInMemory())
	if err != nil {
		return nil, committed{}, err
	}
	defer w.Abort()
	size, sum := int64(len(f.header)), crc.Sum(f.header)
	if err := give(ctx, s, w, f.header); err != nil {
		return nil, committed{}, err
	}
	for _, b := range f.bytes {
		for _, piece := range b.pieces {
			if err := give(ctx, s, w, piece); err != nil {
				return nil, committed{}, err
			}
		}
		size += b.size
		sum = crc.Combine(sum, crc.CombineBlocks(b.blocks, b.size), b.size)
	}
	done, err := w.Commit(ctx)
	if err != nil {
		return nil, committed{}, err
	}
	if done.size != size {
		return nil, committed{}, &moraine.Error{Op: "ckpt.write", Ref: f.name, Kind: moraine.Internal,
			Err: errors.New("the file's size is " + strconv.FormatInt(done.size, 10) + ", not " + strconv.FormatInt(size, 10))}
	}
	if done.crc != sum {
		return nil, committed{}, f.changed()
	}
	return &wire.PartFile{Inode: uint64(done.inode), Name: f.name, Crc: sum, Size: uint64(size)}, done, nil
}

// give writes bytes of s at the pace of its run, and counts them.
func give(ctx context.Context, s *Part, w fileWriter, p []byte) error {
	for len(p) > 0 {
		n := min(len(p), givePiece)
		if pace := s.run.opts.Pace; pace != nil {
			if err := pace(ctx, n); err != nil {
				return err
			}
		}
		if _, err := w.Write(p[:n]); err != nil {
			return err
		}
		s.progress.Add(int64(n))
		p = p[n:]
	}
	return nil
}

// size returns the bytes of the file.
func (f *outFile) size() int64 {
	n := int64(len(f.header))
	for _, b := range f.bytes {
		n += b.size
	}
	return n
}

// changed returns the error of a file whose bytes changed between the copy and the encoding: a
// hardware fault or a stray write changed memory. It looks for bytes that are still wrong, to
// name them.
func (f *outFile) changed() error {
	what := "bytes of"
	for i, b := range f.bytes {
		var sums []uint32
		for _, piece := range b.pieces {
			sums = crc.Blocks(sums, piece)
		}
		if !slices.Equal(sums, b.blocks) {
			what = fmt.Sprintf("%q in", f.names[i])
			break
		}
	}
	return &moraine.Error{Op: "ckpt.write", Ref: f.name, Kind: moraine.Corrupt,
		Err: fmt.Errorf("%s the staging memory changed after the copy: the rank sealed nothing", what)}
}
