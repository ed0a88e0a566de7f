package ckpt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/morainefs/moraine"
)

// cachedIndex bounds the bytes of blocks that an indexReader keeps. A block of up to smallBlock
// bytes is read at once.
const (
	cachedIndex = 32 << 20
	smallBlock  = 64 << 10
)

// indexReader reads blocks of an index and keeps those that were used last. Its methods may be
// called concurrently.
type indexReader struct {
	file  fileReader
	top   *indexTop
	bytes atomic.Int64 // read

	mu     sync.Mutex
	recent []*readBlock // the one used last first
}

// readBlock is a block of which some is in memory. mu is held during reads, so that callers of the
// same block read it once.
type readBlock struct {
	number int
	kept   atomic.Int64 // bytes

	mu    sync.Mutex
	head  *blockHead
	tiles [][]byte // those that were read
}

// read fills p.
func (r *indexReader) read(ctx context.Context, p []byte, off int64) error {
	r.bytes.Add(int64(len(p)))
	return r.file.ReadRange(ctx, p, off)
}

// block returns the i-th block with its head. The caller unlocks it.
func (r *indexReader) block(ctx context.Context, i int) (*readBlock, error) {
	b := r.recentBlock(i)
	b.mu.Lock()
	if b.head != nil {
		return b, nil
	}
	if err := r.readHead(ctx, b, &r.top.blocks[i]); err != nil {
		b.mu.Unlock()
		return nil, err
	}
	return b, nil
}

func (r *indexReader) recentBlock(i int) *readBlock {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := slices.IndexFunc(r.recent, func(b *readBlock) bool { return b.number == i })
	b := &readBlock{number: i}
	if at >= 0 {
		b = r.recent[at]
		r.recent = slices.Delete(r.recent, at, at+1)
	}
	r.recent = slices.Insert(r.recent, 0, b)
	var kept int64
	for n, old := range r.recent {
		if kept += old.kept.Load(); n > 0 && kept > cachedIndex {
			clear(r.recent[n:])
			r.recent = r.recent[:n]
			break
		}
	}
	return b
}

func (r *indexReader) readHead(ctx context.Context, b *readBlock, k *indexBlock) error {
	n := k.head
	if k.length() <= smallBlock {
		n = k.length()
	}
	buf := make([]byte, n)
	if err := r.read(ctx, buf, k.off); err != nil {
		return err
	}
	head, err := parseHead(buf[:k.head], k)
	if err != nil {
		return err
	}
	b.tiles = make([][]byte, len(head.tiles))
	for i := range head.tiles {
		if n > k.head {
			t := &head.tiles[i]
			b.tiles[i] = buf[k.head+t.off : k.head+t.off+t.length]
		}
	}
	b.head = head
	b.kept.Add(n)
	return nil
}

// load reads the tiles [i, j) of a block that are not in memory, in one read.
func (r *indexReader) load(ctx context.Context, b *readBlock, i, j int) error {
	for i < j && b.tiles[i] != nil {
		i++
	}
	for i < j && b.tiles[j-1] != nil {
		j--
	}
	if i == j {
		return nil
	}
	k, tiles := &r.top.blocks[b.number], b.head.tiles
	first := tiles[i].off
	buf := make([]byte, tiles[j-1].off+tiles[j-1].length-first)
	if err := r.read(ctx, buf, k.off+k.head+first); err != nil {
		return err
	}
	b.kept.Add(int64(len(buf)))
	for n := i; n < j; n++ {
		at := tiles[n].off - first
		b.tiles[n] = buf[at : at+tiles[n].length]
	}
	return nil
}

// slices returns the slices of an entry in the tiles [i, j), in order of offset.
func (r *indexReader) slices(ctx context.Context, b *readBlock, entry, i, j int) (out []SliceInfo, err error) {
	if err := r.load(ctx, b, i, j); err != nil {
		return nil, err
	}
	want := func(n int) bool { return n == entry }
	for n := i; n < j && err == nil; n++ {
		err = b.head.parseTile(b.tiles[n], &b.head.tiles[n], r.top.files, want, func(_ int, s SliceInfo) { out = append(out, s) })
	}
	slices.SortFunc(out, compareSlices)
	return out, err
}

// compareSlices orders slices of a tensor as TensorInfo has them.
func compareSlices(a, b SliceInfo) int {
	return cmp.Or(slices.Compare(a.Offset, b.Offset), slices.Compare(a.Shape, b.Shape), cmp.Compare(a.File, b.File))
}

// tensor returns a tensor of a block with all its slices.
func (r *indexReader) tensor(ctx context.Context, b *readBlock, entry int) (*TensorInfo, error) {
	e := &b.head.entries[entry]
	t := e.tensor()
	if e.slices == 0 {
		return &t, nil
	}
	var err error
	if t.Slices, err = r.slices(ctx, b, entry, 0, len(b.head.tiles)); err != nil {
		return nil, err
	}
	if len(t.Slices) != e.slices {
		return nil, corrupt("tensor %q has %d slices, not %d", e.name, len(t.Slices), e.slices)
	}
	return &t, nil
}

// part returns a tensor of a block with the slices that may have elements of a range of it.
func (r *indexReader) part(ctx context.Context, b *readBlock, entry int, offset, shape []int64) (*TensorInfo, error) {
	e := &b.head.entries[entry]
	if len(e.shape) == 0 || checkSlice(e.shape, offset, shape) != nil {
		return r.tensor(ctx, b, entry) // the caller refuses the range
	}
	t := e.tensor()
	if e.slices == 0 || volume(shape) == 0 {
		return &t, nil
	}
	lo, hi := e.band(offset[e.key], shape[e.key])
	i, j := b.head.tilesOf(lo, hi)
	var err error
	t.Slices, err = r.slices(ctx, b, entry, i, j)
	return &t, err
}

// find returns the block that has the tensor, with its head, and the number of its entry. ok is
// false if there is none; else the caller unlocks the block.
func (r *indexReader) find(ctx context.Context, name string) (b *readBlock, entry int, ok bool, err error) {
	i := sort.Search(len(r.top.blocks), func(i int) bool { return r.top.blocks[i].first > name }) - 1
	if i < 0 {
		return nil, 0, false, nil
	}
	if b, err = r.block(ctx, i); err != nil {
		return nil, 0, false, err
	}
	if entry = b.head.find(name); entry < 0 {
		b.mu.Unlock()
		return nil, 0, false, nil
	}
	return b, entry, true, nil
}

// Tensors calls yield for each tensor in order of name, until it returns an error, which
// Tensors returns.
func (k *Checkpoint) Tensors(ctx context.Context, yield func(*TensorInfo) error) error {
	return k.TensorsAfter(ctx, "", yield) // no name is empty
}

// TensorsAfter is Tensors of the names after one.
func (k *Checkpoint) TensorsAfter(ctx context.Context, after string, yield func(*TensorInfo) error) error {
	c := tensorCursor{k: k}
	c.block = max(sort.Search(len(k.top.blocks), func(i int) bool { return k.top.blocks[i].first > after })-1, 0)
	for {
		t, err := c.peek(ctx)
		if err != nil || t == nil {
			return err
		}
		if t.Name > after {
			if err := yield(t); err != nil {
				return err
			}
		}
		c.next()
	}
}

// Tensor finds a tensor by name, or fails with NotFound, and with Unimplemented in a step that is adopted from
// files of which only the framework knows the tensors. The caller must not change the result.
func (k *Checkpoint) Tensor(ctx context.Context, name string) (*TensorInfo, error) {
	return tensorWith(ctx, k, name, func(b *readBlock, entry int) (*TensorInfo, error) { return k.index.tensor(ctx, b, entry) })
}

// tensorPart is Tensor with the slices that may have elements of a range. It reads little more of the
// index than those.
func tensorPart(ctx context.Context, k *Checkpoint, name string, offset, shape []int64) (*TensorInfo, error) {
	return tensorWith(ctx, k, name, func(b *readBlock, entry int) (*TensorInfo, error) {
		return k.index.part(ctx, b, entry, offset, shape)
	})
}

func tensorWith(ctx context.Context, k *Checkpoint, name string, get func(*readBlock, int) (*TensorInfo, error)) (*TensorInfo, error) {
	b, entry, ok, err := k.index.find(ctx, name)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, noTensor(k, name)
	}
	defer b.mu.Unlock()
	return get(b, entry)
}

// noTensor is the error of a tensor that the index does not have.
func noTensor(k *Checkpoint, name string) error {
	if err := tensorsUnknown(k); err != nil {
		return err
	}
	return &moraine.Error{Op: "ckpt.Tensor", Ref: fmt.Sprintf("%s, tensor %q", k.Info.ref(), name), Kind: moraine.NotFound}
}

// tensorsUnknown returns Unimplemented if only the framework that wrote the files of an adopted step knows
// its tensors. A reader would take it for an empty step.
func tensorsUnknown(k *Checkpoint) error {
	files := k.top.files
	if slices.ContainsFunc(files, func(f FileInfo) bool { return f.hasTensors() }) || !slices.ContainsFunc(files, func(f FileInfo) bool { return f.Kind == AdoptedFile }) {
		return nil
	}
	return &moraine.Error{Op: "ckpt.Tensor", Ref: k.Info.ref(), Kind: moraine.Unimplemented, Err: errors.New(
		"the step is adopted from files, and only the framework knows its tensors: use `moraine ckpt restore`, or the framework's reader on a mount")}
}

// IndexBytes returns how many bytes of the checkpoint's index have been read through k, and how many
// it has.
func (k *Checkpoint) IndexBytes() (read, size int64) {
	return k.index.bytes.Load(), k.index.file.Size()
}

// tensorCursor goes through the tensors of a checkpoint in order of name.
type tensorCursor struct {
	k            *Checkpoint
	block, entry int
	tensor       *TensorInfo
}

// peek returns the tensor at the cursor; nil at the end.
func (c *tensorCursor) peek(ctx context.Context) (*TensorInfo, error) {
	for c.tensor == nil {
		if c.block == len(c.k.top.blocks) {
			return nil, nil
		}
		b, err := c.k.index.block(ctx, c.block)
		if err != nil {
			return nil, err
		}
		if c.entry == len(b.head.entries) {
			c.block, c.entry = c.block+1, 0
		} else {
			c.tensor, err = c.k.index.tensor(ctx, b, c.entry)
		}
		b.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
	return c.tensor, nil
}

func (c *tensorCursor) next() { c.entry, c.tensor = c.entry+1, nil }
