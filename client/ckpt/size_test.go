package ckpt_test

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"runtime"
	"strconv"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
)

// wideStep is a cluster with one sealed step of many ranks. It makes the header of a part when it is
// read, so that the parts take no memory. Each tensor is cut into one row per rank.
type wideStep struct {
	*fakeCluster
	world   uint32
	tensors int
	key     *wire.StepKey
	// order has the ranks in the order of their seals, of which now counts those so far; nil: all have sealed.
	order []uint32
	now   func() int
}

// Meta answers for the sealed step.
func (w *wideStep) Meta(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	switch op := req.GetOp().(type) {
	case *wire.MetaRequest_GetStep:
		return stepResp(w.step()), nil
	case *wire.MetaRequest_ListParts:
		reply := &wire.PartsReply{}
		for rank := op.ListParts.After; rank < min(w.world, op.ListParts.After+op.ListParts.Limit); rank++ {
			if !w.sealed(rank) {
				continue
			}
			h := w.header(rank)
			reply.Parts = append(reply.Parts, &wire.Part{Rank: rank, Digest: ckpt.PartDigest(h), Files: []*wire.PartFile{{
				Inode: uint64(rank) + 1000, Name: fmt.Sprintf("rank-%05d-of-%05d.safetensors", rank, w.world), Size: w.size(h)}}})
		}
		reply.More = op.ListParts.After+op.ListParts.Limit < w.world
		return &wire.MetaResponse{Result: &wire.MetaResponse_Parts{Parts: reply}}, nil
	}
	return w.fakeCluster.Meta(ctx, req)
}

func (w *wideStep) size(header []byte) uint64 { return uint64(len(header) + w.tensors*64*4) }

// wideReader reads a part whose data is zero.
type wideReader struct {
	header []byte
	size   int64
}

func (r *wideReader) Size() int64  { return r.size }
func (r *wideReader) Close() error { return nil }
func (r *wideReader) InObject(context.Context, int64, int64) (bool, error) {
	return false, nil
}
func (r *wideReader) ReadRange(_ context.Context, dst []byte, off int64) error {
	clear(dst)
	if off < int64(len(r.header)) {
		copy(dst, r.header[off:])
	}
	return nil
}

// Open opens a part, or the index.
func (w *wideStep) Open(ctx context.Context, inode moraine.InodeID) (ckpt.FileReader, error) {
	if rank := uint64(inode) - 1000; rank < uint64(w.world) {
		h := w.header(uint32(rank))
		return &wideReader{h, int64(w.size(h))}, nil
	}
	return w.fakeCluster.Open(ctx, inode)
}

// header makes the header that a save writes, as text: it must cost little beside its reading.
func (w *wideStep) header(rank uint32) []byte {
	name := func(b []byte, n int) []byte { return fmt.Appendf(b, "model.layers.%06d.mlp.weight", n) }
	b := make([]byte, 8, 8+w.tensors*300+4096)
	b = append(b, `{"__metadata__":{"DCP_SHARDING_INFO":"{`...)
	for n := range w.tensors {
		b = name(append(b, comma(n)+`\"`...), n)
		b = strconv.AppendUint(append(b, `\":{\"saved_offsets\":[`...), uint64(rank), 10)
		b = append(b, `,0]}`...)
	}
	b = fmt.Appendf(b, `}","DCP_VERSION":"1.0","MORAINE_PART":"{\"version\":1,\"run\":\"%x\",\"attempt\":%d,\"step\":%d,`+
		`\"rank\":%d,\"world\":%d,\"file\":0,\"tensors\":{`, w.key.Run, w.key.Attempt, w.key.Step, rank, w.world)
	for n := range w.tensors {
		b = name(append(b, comma(n)+`\"`...), n)
		b = strconv.AppendUint(append(b, `\":{\"global\":[`...), uint64(w.world), 10)
		b = append(b, `,64],\"digest\":\"`...)
		b = hex.AppendEncode(b, binary.BigEndian.AppendUint64(make([]byte, 8, 16), uint64(rank)<<32|uint64(n)))
		b = append(b, `\"}`...)
	}
	b = append(b, `}}","format":"pt"}`...)
	for n := range w.tensors {
		b = name(append(b, `,"`...), n)
		b = strconv.AppendInt(append(b, `":{"dtype":"F32","shape":[1,64],"data_offsets":[`...), int64(n)*256, 10)
		b = append(strconv.AppendInt(append(b, ','), int64(n+1)*256, 10), `]}`...)
	}
	b = append(b, '}')
	for len(b)%4096 != 0 {
		b = append(b, ' ')
	}
	binary.LittleEndian.PutUint64(b, uint64(len(b)-8))
	return b
}

func comma(n int) string {
	if n == 0 {
		return ""
	}
	return ","
}

// BenchmarkCheckOfAWideStep is what a mover does between the last seal and the commit of a step of
// many ranks. It includes the making of the headers, which readers get over the network otherwise:
// see the line "headers".
func BenchmarkCheckOfAWideStep(b *testing.B) {
	for _, size := range []struct {
		world   uint32
		tensors int
	}{{1000, 1000}, {10_000, 100}, {10_000, 1000}} {
		w := &wideStep{fakeCluster: newFake(), world: size.world, tensors: size.tensors, key: &wire.StepKey{Run: 7, Attempt: 1, Step: 1}}
		w.next = 1 << 40 // inodes of other files
		b.Run(fmt.Sprintf("headers/%dx%d", size.world, size.tensors), func(b *testing.B) {
			for b.Loop() {
				for rank := range size.world {
					w.header(rank)
					w.header(rank)
				}
			}
		})
		b.Run(fmt.Sprintf("check/%dx%d", size.world, size.tensors), func(b *testing.B) {
			for b.Loop() {
				index, err := ckpt.CheckStepOn(b.Context(), w, w.key)
				require.NoError(b, err)
				b.ReportMetric(float64(index.GetSize()), "index-bytes")
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				b.ReportMetric(float64(m.HeapSys), "heap-bytes")
			}
		})
	}
}
