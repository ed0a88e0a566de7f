package ckpt

import (
	"context"
	"crypto/sha256"
	"encoding/binary"

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

func (c testCluster) create(ctx context.Context, near moraine.InodeID, _ moraine.Level) (fileWriter, error) {
	return c.Create(ctx, near)
}
func (c testCluster) open(ctx context.Context, inode moraine.InodeID) (fileReader, error) {
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
		list, err := parseBlock(b[k.off:k.off+k.length], k, top.files)
		if err != nil {
			return nil, nil, err
		}
		tensors = append(tensors, list...)
	}
	return top.files, tensors, nil
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
	return c.check()
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
	_, err := c.check()
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
		k.crc = crc.Sum(b[k.off : k.off+k.length])
	}
	if t := appendTop(nil, top); int64(len(t)) == n {
		copy(b[off:], t)
		put(32, crc.Sum(t))
		put(footerSize-4, crc.Sum(f[:footerSize-4]))
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
	h, err := parsePart(b, fileSize)
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

// EachPiece cuts a tensor as Diff does.
func EachPiece(shape []int64, elem, limit int64, yield func(offset, shape []int64) (bool, error)) error {
	return eachPiece(shape, elem, limit, yield)
}

// PartDigest returns the digest of a part with one file, given its header.
func PartDigest(header []byte) []byte {
	d := partDigest([][sha256.Size]byte{sha256.Sum256(header)})
	return d[:]
}
