package demo_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client/ckpt/safetensors"
	"github.com/morainefs/moraine/internal/demo"
	"github.com/morainefs/moraine/internal/llama"
)

// part is a safetensors file with a rank's rows of every tensor.
func part(t *testing.T, m llama.Model, rank, world uint32, seed uint64) (*llama.Shard, []byte) {
	t.Helper()
	shard := llama.NewShard(m, rank, world)
	shard.Fill(seed)
	h := &safetensors.Header{}
	offsets := map[string]int64{}
	for i, sum := range shard.Sums() {
		tensor := m.Tensors()[i]
		row := tensor.Bytes() / tensor.Shape[0]
		shape := append([]int64{sum.Len / row}, tensor.Shape[1:]...)
		h.Tensors = append(h.Tensors, safetensors.Tensor{Name: sum.Name, DType: tensor.DType, Shape: shape})
		offsets[sum.Name] = sum.Offset
	}
	require.NoError(t, safetensors.Order(h.Tensors))
	file, err := h.Encode()
	require.NoError(t, err)
	for _, tensor := range h.Tensors {
		data := make([]byte, tensor.Size())
		llama.Fill(data, seed, tensor.Name, offsets[tensor.Name])
		file = append(file, data...)
	}
	return shard, file
}

// TestDigestsOfParts compares the demo's digests of the files of parts with the
// memory of the ranks.
func TestDigestsOfParts(t *testing.T) {
	const world = 3
	model := llama.Small()
	var saved, read []llama.Sum
	at := map[string]int64{}
	for rank := range uint32(world) {
		shard, file := part(t, model, rank, world, 7)
		saved = append(saved, shard.Sums()...)
		sums, err := demo.PartSums(bytes.NewReader(file), int64(len(file)), at)
		require.NoError(t, err)
		read = append(read, sums...)
		digests, err := demo.TensorDigests(bytes.NewReader(file), int64(len(file)))
		require.NoError(t, err)
		require.Equal(t, shard.SHA256(), digests)
		file[len(file)-1] ^= 1
		digests, err = demo.TensorDigests(bytes.NewReader(file), int64(len(file)))
		require.NoError(t, err)
		require.NotEqual(t, shard.SHA256(), digests)
		_, err = demo.TensorDigests(bytes.NewReader(file[:len(file)-1]), int64(len(file)))
		require.Error(t, err)
	}
	want, err := llama.Digest(model, saved)
	require.NoError(t, err)
	got, err := llama.Digest(model, read)
	require.NoError(t, err)
	require.Equal(t, want, got)
}
