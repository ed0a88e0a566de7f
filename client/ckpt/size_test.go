package ckpt_test

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
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
}

// Meta answers for the sealed step.
func (w *wideStep) Meta(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	switch op := req.GetOp().(type) {
	case *wire.MetaRequest_GetStep:
		return stepResp(&wire.Step{Key: w.key, World: w.world, State: wire.StepState_STEP_STATE_SEALED}), nil
	case *wire.MetaRequest_ListParts:
		reply := &wire.PartsReply{}
		for rank := op.ListParts.After; rank < min(w.world, op.ListParts.After+op.ListParts.Limit); rank++ {
			h := w.header(rank)
			reply.Parts = append(reply.Parts, &wire.Part{Rank: rank, Digest: ckpt.PartDigest(h), Files: []*wire.PartFile{{
				Inode: uint64(rank) + 1000, Name: fmt.Sprintf("rank-%05d-of-%05d.safetensors", rank, w.world), Size: w.size(h)}}})
		}
		last := op.ListParts.After + uint32(len(reply.Parts))
		reply.More = last < w.world
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

func (w *wideStep) header(rank uint32) []byte {
	meta := map[string]any{}
	offsets := map[string]any{}
	h := safetensors.Header{Tensors: make([]safetensors.Tensor, w.tensors)}
	for n := range h.Tensors {
		name := fmt.Sprintf("model.layers.%d.mlp.weight", n)
		h.Tensors[n] = safetensors.Tensor{Name: name, DType: ckpt.F32, Shape: []int64{1, 64}}
		meta[name] = map[string]any{"global": []int64{int64(w.world), 64}, "digest": fmt.Sprintf("%032x", uint64(rank)<<32|uint64(n))}
		offsets[name] = map[string]any{"saved_offsets": []int64{int64(rank), 0}}
	}
	if err := safetensors.Order(h.Tensors); err != nil {
		panic(err)
	}
	part, _ := json.Marshal(map[string]any{"version": 1, "run": fmt.Sprintf("%x", w.key.Run), "attempt": w.key.Attempt, "step": w.key.Step,
		"rank": rank, "world": w.world, "file": 0, "tensors": meta})
	slices, _ := json.Marshal(offsets)
	h.Metadata = map[string]string{"format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO": string(slices), "MORAINE_PART": string(part)}
	b, err := h.Encode()
	if err != nil {
		panic(err)
	}
	return b
}

// BenchmarkCheckOfAWideStep is what a mover does between the last seal and the commit of a step of
// many ranks. It includes the making of the headers, which readers get over the network otherwise:
// see the line "headers".
func BenchmarkCheckOfAWideStep(b *testing.B) {
	for _, size := range []struct {
		world   uint32
		tensors int
	}{{1000, 1000}, {10_000, 100}} {
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
