package ckpt

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/transport/wire"
)

// Types and functions with which ckpt_test uses the package over its own cluster.

type (
	Cluster    = cluster
	FileWriter = fileWriter
	FileReader = fileReader
	Claim      = claim
)

// TestCluster is implemented by a test and replaces a client.
type TestCluster interface {
	Meta(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error)
	Create(ctx context.Context, near moraine.InodeID) (FileWriter, error)
	Open(ctx context.Context, inode moraine.InodeID) (FileReader, error)
	MkdirAll(ctx context.Context, path string) (moraine.InodeID, error)
}

type testCluster struct{ TestCluster }

func (c testCluster) create(ctx context.Context, near moraine.InodeID, _ moraine.Level, _ bool) (fileWriter, error) {
	return c.Create(ctx, near)
}
func (c testCluster) open(ctx context.Context, inode moraine.InodeID) (fileReader, error) {
	return c.Open(ctx, inode)
}
func (c testCluster) openObject(ctx context.Context, inode moraine.InodeID) (fileReader, error) {
	return c.Open(ctx, inode)
}
func (c testCluster) leaseStep(ctx context.Context, key *wire.StepKey) (release func(context.Context) error, err error) {
	_, err = c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_LeaseStep{LeaseStep: &wire.LeaseStep{Key: key}}})
	return func(ctx context.Context) error {
		_, err := c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ReleaseStep{ReleaseStep: &wire.ReleaseStep{Key: key}}})
		return err
	}, err
}
func (c testCluster) mkdirAll(ctx context.Context, path string) (moraine.InodeID, error) {
	return c.MkdirAll(ctx, path)
}

// Committed makes the result of a FileWriter's Commit.
func Committed(inode moraine.InodeID, data []byte, protects, degraded uint32) committed {
	return committed{inode, int64(len(data)), crc.Sum(data), protects, degraded}
}

// StagedTensor returns the staging memory of a tensor that was added.
func StagedTensor(s *Part, name string) [][]byte { return s.slices[name][0].bytes.pieces }

type CommittedResult = committed

func OpenRunOn(ctx context.Context, c TestCluster, path string, opts RunOptions) (*Run, error) {
	return openRun(ctx, testCluster{c}, path, opts)
}

func CheckStepOn(ctx context.Context, c TestCluster, key *wire.StepKey) (*wire.PartFile, error) {
	return checkStep(ctx, testCluster{c}, key)
}

// EncodeIndex and DecodeIndex give golden and fuzz tests access to the format.
func EncodeIndex(run uint64, attempt uint32, step uint64, world uint32, files []FileInfo, tensors []TensorInfo) ([]byte, error) {
	top := &indexTop{world: world, files: files}
	top.key.Run, top.key.Attempt, top.key.Step = run, attempt, step
	return encodeIndex(top, tensors)
}

func DecodeIndex(b []byte) (files []FileInfo, tensors []TensorInfo, err error) {
	if len(b) < footerSize {
		return nil, nil, corrupt("an index of %d bytes", len(b))
	}
	off, n, sum, err := parseFooter(b[len(b)-footerSize:], int64(len(b)))
	if err != nil {
		return nil, nil, err
	}
	if !sumIs(b[off:off+n], sum) {
		return nil, nil, corrupt("the top does not match its CRC")
	}
	top, err := parseTop(b[off:off+n], off)
	if err != nil {
		return nil, nil, err
	}
	for i := range top.blocks {
		k := &top.blocks[i]
		head, err := parseHead(b[k.off:k.off+k.head], k)
		if err != nil {
			return nil, nil, err
		}
		list := make([]TensorInfo, len(head.entries))
		for i := range list {
			list[i] = head.entries[i].tensor()
		}
		body := b[k.off+k.head : k.off+k.length()]
		for i := range head.tiles {
			t := &head.tiles[i]
			err := head.parseTile(body[t.off:t.off+t.length], t, top.files, nil, func(n int, s SliceInfo) { list[n].Slices = append(list[n].Slices, s) })
			if err != nil {
				return nil, nil, err
			}
		}
		for i := range list {
			if len(list[i].Slices) != head.entries[i].slices {
				return nil, nil, corrupt("tensor %q has %d slices, not %d", list[i].Name, len(list[i].Slices), head.entries[i].slices)
			}
		}
		tensors = append(tensors, list...)
	}
	return top.files, tensors, nil
}

// IndexLookup looks up tensors of an index in memory, and counts what it reads.
type IndexLookup struct{ k *Checkpoint }

// OpenIndex reads the top of an index.
func OpenIndex(b []byte) (IndexLookup, error) {
	k := &Checkpoint{index: &indexReader{file: bytesFile(b)}}
	err := k.index.readTop(context.Background())
	k.top = k.index.top
	return IndexLookup{k}, err
}

// Read returns how many bytes have been read.
func (l IndexLookup) Read() int64 { return l.k.index.bytes.Load() }

// Part returns the slices that may have elements of a range of a tensor.
func (l IndexLookup) Part(name string, offset, shape []int64) ([]SliceInfo, error) {
	t, err := tensorPart(context.Background(), l.k, name, offset, shape)
	if err != nil {
		return nil, err
	}
	return t.Slices, nil
}

// bytesFile is a file in memory.
type bytesFile []byte

func (f bytesFile) Size() int64  { return int64(len(f)) }
func (f bytesFile) Close() error { return nil }
func (f bytesFile) InObject(context.Context, int64, int64) (bool, error) {
	return false, nil
}
func (f bytesFile) ReadRange(_ context.Context, dst []byte, off int64) error {
	if copy(dst, f[off:]) < len(dst) {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// CheckStaircase checks a tensor with n slices of which no two overlap, and that a sweep along either
// dimension cannot tell apart. comparisons bounds the check.
func CheckStaircase(ctx context.Context, n, comparisons int64) error {
	c := &coverage{name: "w"}
	for i := range n {
		if err := c.add(uint32(i), safetensors.U8, []int64{n, n}, SliceInfo{Offset: []int64{i, i}, Shape: []int64{n - i, 1}}); err != nil {
			return err
		}
	}
	return indexOf(ctx, &indexTop{}, map[string]*coverage{"w": c}, func([]byte) error { return nil }, comparisons)
}

// TakeHeaders takes header bytes of a budget in turn.
func TakeHeaders(ctx context.Context, total int64, sizes ...int64) error {
	b := &headerBudget{inUse: headersLimit(), left: total}
	for _, n := range sizes {
		release, err := b.take(ctx, n)
		if err != nil {
			return err
		}
		release()
	}
	return nil
}

// CheckCoverage runs the coverage check over one tensor's claims.
func CheckCoverage(name string, add func(add func(rank uint32, d DType, global, offset, shape []int64, digest Digest) error) error) (TensorInfo, error) {
	c := &coverage{name: name}
	err := add(func(rank uint32, d DType, global, offset, shape []int64, digest Digest) error {
		return c.add(rank, d, global, SliceInfo{File: int(rank), Offset: offset, Shape: shape, Digest: digest})
	})
	if err != nil {
		return TensorInfo{}, err
	}
	return c.check(&effort{context.Background(), maxComparisons})
}

// CheckShared runs the coverage check over a stored claim of rank 0 and a shared one of rank 1.
func CheckShared(global, offset, shape []int64, stored Digest, sharedOffset, sharedShape []int64, shared Digest) error {
	c := &coverage{name: "w"}
	if err := c.add(0, safetensors.F32, global, SliceInfo{Offset: offset, Shape: shape, Digest: stored}); err != nil {
		return err
	}
	if err := c.share(1, 0, safetensors.F32, global, SliceInfo{Offset: sharedOffset, Shape: sharedShape, Digest: shared}); err != nil {
		return err
	}
	_, err := c.check(&effort{context.Background(), maxComparisons})
	return err
}

// SegmentSize is the unit of staging memory.
const SegmentSize = segmentSize

// Reseal makes the CRCs of footer and top, and of blocks if the top parses, match their
// content.
func Reseal(b []byte) {
	if len(b) < footerSize {
		return
	}
	f := b[len(b)-footerSize:]
	put := func(at int, v uint32) { binary.LittleEndian.PutUint32(f[at:], v) }
	put(footerSize-4, crc.Sum(f[:footerSize-4]))
	off, n, _, err := parseFooter(f, int64(len(b)))
	if err != nil {
		return
	}
	put(32, crc.Sum(b[off:off+n]))
	put(footerSize-4, crc.Sum(f[:footerSize-4]))
	top, err := parseTop(b[off:off+n], off)
	if err != nil {
		return
	}
	for i := range top.blocks {
		k := &top.blocks[i]
		resealBlock(b[k.off:k.off+k.length()], k)
		k.crc = crc.Sum(b[k.off : k.off+k.head])
	}
	if t := appendTop(nil, top); int64(len(t)) == n {
		copy(b[off:], t)
		put(32, crc.Sum(t))
		put(footerSize-4, crc.Sum(f[:footerSize-4]))
	}
}

// resealBlock makes the CRCs in a head match the tiles, if the head parses.
func resealBlock(b []byte, k *indexBlock) {
	k.crc = crc.Sum(b[:k.head])
	head, err := parseHead(b[:k.head], k)
	if err != nil {
		return
	}
	at := k.head // the table ends the head
	for i := len(head.tiles) - 1; i >= 0; i-- {
		t := &head.tiles[i]
		binary.LittleEndian.PutUint32(b[at-4:], crc.Sum(b[k.head+t.off:k.head+t.off+t.length]))
		key := t.key
		if i > 0 {
			key -= head.tiles[i-1].key
		}
		at -= int64(4 + len(binary.AppendUvarint(nil, uint64(t.length))) + len(binary.AppendUvarint(nil, uint64(key))))
	}
}

// PlanRuns returns the runs {file offset, buffer offset, length} that a read of
// [offset, offset+shape) takes from one saved slice.
func PlanRuns(s SliceInfo, elem int64, offset, shape []int64) (out [][3]int64) {
	p := planSlice(&s, elem, offset, shape)
	if p == nil {
		return nil
	}
	p.runs(func(r run) bool {
		out = append(out, [3]int64{r.file, r.dst, r.length})
		return true
	})
	return out
}

// ParsePart reads the header of a part's file and returns its slices.
func ParsePart(b []byte, fileSize int64) ([]SliceInfo, error) {
	h, err := new(partParser).parse(b, fileSize)
	if err != nil {
		return nil, err
	}
	var out []SliceInfo
	for i := range h.slices {
		s := &h.slices[i]
		out = append(out, SliceInfo{Offset: s.Offset, Shape: s.Shape, Begin: s.Begin, Digest: s.Digest})
	}
	return out, nil
}

// ComparePaths reads a header in both ways. It reports whether the fast one took it, and fails if
// the other one finds something else.
func ComparePaths(b []byte, fileSize int64) (fast bool, err error) {
	if len(b) < safetensors.LengthBytes || !utf8.Valid(b[safetensors.LengthBytes:]) {
		return false, nil
	}
	n := int64(len(b))
	got := new(partParser).fast(b[safetensors.LengthBytes:], n, fileSize-n)
	if got == nil {
		return false, nil
	}
	want, err := parseAnyPart(b, fileSize)
	if err != nil {
		return true, fmt.Errorf("the fast path takes what is refused: %w", err)
	}
	want.meta.Tensors, want.root = nil, [sha256.Size]byte{}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(partHeader{}, sharedSlice{}), cmpopts.EquateEmpty()); diff != "" {
		return true, errors.New(diff)
	}
	return true, nil
}

// EachPiece cuts a tensor as Diff does.
func EachPiece(shape []int64, elem, limit int64, yield func(offset, shape []int64) (bool, error)) error {
	return eachPiece(shape, elem, limit, yield)
}

// PartDigest returns the digest of a part with one file, given its header.
func PartDigest(header []byte) []byte {
	d := partDigest([][sha256.Size]byte{headerRoot(header)})
	return d[:]
}
