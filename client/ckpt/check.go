package ckpt

import (
	"context"
	"errors"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// partsPage is how many parts one request lists.
	partsPage = 500
	// headersAtOnce bounds the headers read at once. headerGuess is how much of the first file is read
	// first, at least: most headers are shorter.
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
	step, top, tensors, err := foldStep(ctx, c, key)
	if err != nil {
		return nil, verdictOf(key, err)
	}
	level := moraine.NVMe
	if step.GetBelowNvme() > 0 {
		level = moraine.Memory // the index need not be safer than the parts
	}
	w, err := c.create(ctx, moraine.InodeID(step.GetDir()), level, level == moraine.Memory && step.GetStaysInMemory())
	if err != nil {
		return nil, err
	}
	defer w.Abort()
	var sum uint32
	var size int64
	err = indexOf(ctx, top, tensors, func(p []byte) error {
		sum, size = crc.Update(sum, p), size+int64(len(p))
		_, err := w.Write(p)
		return err
	}, maxComparisons)
	if err != nil {
		return nil, verdictOf(key, err)
	}
	done, err := w.Commit(ctx)
	if err != nil {
		return nil, err
	}
	if done.crc != sum || done.size != size {
		return nil, &moraine.Error{Op: "ckpt.CheckStep", Ref: IndexName, Kind: moraine.IOError, Err: errors.New("the index changed in memory while it was written")}
	}
	return &wire.PartFile{Inode: uint64(done.inode), Name: IndexName, Crc: sum, Size: uint64(size)}, nil
}

// verdictOf gives a verdict the kind of a step that can never be committed. Other errors stay.
func verdictOf(key *wire.StepKey, err error) error {
	if v := (*Verdict)(nil); errors.As(err, &v) {
		return &moraine.Error{Op: "ckpt.CheckStep", Ref: fmt.Sprintf("step %d", key.Step), Kind: moraine.Incomplete, Err: err}
	}
	return err
}

// foldStep folds a step, and returns it as it is once it is sealed.
func foldStep(ctx context.Context, c cluster, key *wire.StepKey) (*wire.Step, *indexTop, map[string]*coverage, error) {
	step, err := getStep(ctx, c, key)
	if err != nil {
		return nil, nil, nil, err
	}
	if step.GetAdopted() != nil {
		parts, err := listParts(ctx, c, key)
		if err != nil {
			return nil, nil, nil, err
		}
		top, tensors, err := foldAdopted(ctx, c, step, parts)
		return step, top, tensors, err
	}
	f := newFolder(c, step)
	if step, err = f.asSealed(ctx, key); err != nil {
		return nil, nil, nil, err
	}
	top, tensors, err := f.end()
	return step, top, tensors, err
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

// headerReader reads headers of parts, one at a time.
type headerReader struct {
	c      cluster
	parser partParser
	// guess is how much of a file is read first: the headers of ranks are of about the same length.
	guess int64
	buf   []byte
}

// read reads only the header of one file.
func (h *headerReader) read(ctx context.Context, file *wire.PartFile) (*partHeader, error) {
	r, err := h.c.open(ctx, moraine.InodeID(file.GetInode()))
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if r.Size() != int64(file.GetSize()) {
		return nil, verdict("file %s has %d bytes, not %d", file.GetName(), r.Size(), file.GetSize())
	}
	b, err := readHeader(ctx, r, h.buf, h.guess)
	if err != nil {
		return nil, named(err, file.GetName())
	}
	h.buf, h.guess = b, int64(len(b))
	p, err := h.parser.parse(b, r.Size())
	if err != nil {
		return nil, verdict("file %s: %v", file.GetName(), err)
	}
	return p, nil
}

// named adds the file's name to a verdict.
func named(err error, name string) error {
	if v := (*Verdict)(nil); errors.As(err, &v) {
		return verdict("file %s: %s", name, v.Reason)
	}
	return err
}

// readHeader reads everything of a safetensors file before its data, into buf if it has room. It
// reads guess bytes first.
func readHeader(ctx context.Context, r fileReader, buf []byte, guess int64) ([]byte, error) {
	b := sized(buf, min(r.Size(), max(guess, headerGuess)))
	if err := r.ReadRange(ctx, b, 0); err != nil {
		return nil, err
	}
	n, err := headerLen(r, b)
	if err != nil {
		return nil, err
	}
	if have := int64(len(b)); n > have {
		first := b
		b = sized(first, n)
		copy(b, first)
		if err := r.ReadRange(ctx, b[have:], have); err != nil {
			return nil, err
		}
	}
	return b[:n], nil
}

// headerLen returns how long the header of a safetensors file is, by its first bytes.
func headerLen(r fileReader, first []byte) (int64, error) {
	n, err := safetensors.HeaderLen(first)
	switch {
	case err != nil:
		return 0, verdict("no safetensors header: %v", err)
	case n > r.Size():
		return 0, verdict("the file is cut short: it has %d bytes, and its header alone %d", r.Size(), n)
	}
	return n, nil
}

// sized returns n bytes, of buf if it has room.
func sized(buf []byte, n int64) []byte {
	if int64(cap(buf)) >= n {
		return buf[:n]
	}
	return make([]byte, n, n+n/8)
}
