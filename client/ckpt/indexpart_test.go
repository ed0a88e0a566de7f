package ckpt_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
)

// TestAPlanReadsLittleOfTheIndex looks up what one rank of 1,000 needs of 200 tensors: beside the top
// it reads a hundredth of the index.
func TestAPlanReadsLittleOfTheIndex(t *testing.T) {
	const world, count = 1000, 200
	files := make([]ckpt.FileInfo, world)
	for rank := range files {
		files[rank] = ckpt.FileInfo{Name: fmt.Sprintf("rank-%05d-of-01000.safetensors", rank), Kind: ckpt.TensorFile, Rank: uint32(rank), Size: 1 << 20}
	}
	tensors := make([]ckpt.TensorInfo, count)
	for n := range tensors {
		x := &tensors[n]
		*x = ckpt.TensorInfo{Name: fmt.Sprintf("layer.%04d", n), DType: safetensors.F32, Shape: []int64{world, 8}}
		if n%2 == 1 {
			x.Shape = []int64{8, world}
		}
		for rank := range int64(world) {
			s := ckpt.SliceInfo{File: int(rank), Offset: []int64{rank, 0}, Shape: []int64{1, 8}, Begin: int64(n * 32), Digest: ckpt.Digest{byte(rank), byte(n)}}
			if n%2 == 1 {
				s.Offset, s.Shape = []int64{0, rank}, []int64{8, 1}
			}
			x.Slices = append(x.Slices, s)
		}
	}
	b, err := ckpt.EncodeIndex(1, 1, 1, world, files, tensors)
	require.NoError(t, err)
	r, err := ckpt.OpenIndex(b)
	require.NoError(t, err)
	top := r.Read()
	for n := range tensors {
		want := tensors[n].Slices[500]
		got, err := r.Part(tensors[n].Name, want.Offset, want.Shape)
		require.NoError(t, err)
		require.Contains(t, got, want)
	}
	require.Less(t, r.Read()-top, int64(len(b)/100))
}

// TestPartsOfTensorsAgainstAllSlices cuts tensors at random, by rows, columns or in a grid, with replicas. A part of
// one has each slice that shares an element with it.
func TestPartsOfTensorsAgainstAllSlices(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		files := []ckpt.FileInfo{{Name: "rank-00000-of-00001.safetensors", Kind: ckpt.TensorFile, Size: 1 << 40}}
		tensors := make([]ckpt.TensorInfo, rapid.IntRange(1, 6).Draw(t, "tensors"))
		for n := range tensors {
			tensors[n] = cutTensor(t, fmt.Sprint("t", n))
		}
		b, err := ckpt.EncodeIndex(1, 1, 1, 1, files, tensors)
		require.NoError(t, err)
		_, all, err := ckpt.DecodeIndex(b)
		require.NoError(t, err)
		r, err := ckpt.OpenIndex(b)
		require.NoError(t, err)
		for n := range tensors {
			x := &tensors[n]
			require.Len(t, all[n].Slices, len(x.Slices))
			whole, err := r.Part(x.Name, []int64{0, 0}, x.Shape)
			require.NoError(t, err)
			require.Equal(t, x.Slices, whole)
			var offset, shape []int64
			for d := range x.Shape {
				from := rapid.Int64Range(0, x.Shape[d]-1).Draw(t, "from")
				offset, shape = append(offset, from), append(shape, rapid.Int64Range(1, x.Shape[d]-from).Draw(t, "length"))
			}
			got, err := r.Part(x.Name, offset, shape)
			require.NoError(t, err)
			require.Equal(t, sharing(x.Slices, offset, shape), sharing(got, offset, shape))
		}
	})
}

// sharing returns the slices that share an element with a range.
func sharing(list []ckpt.SliceInfo, offset, shape []int64) (out []ckpt.SliceInfo) {
	for _, s := range list {
		if s.Offset[0] < offset[0]+shape[0] && offset[0] < s.Offset[0]+s.Shape[0] && s.Offset[1] < offset[1]+shape[1] && offset[1] < s.Offset[1]+s.Shape[1] {
			out = append(out, s)
		}
	}
	return out
}

// cutTensor returns a tensor in slices in order of offset.
func cutTensor(t *rapid.T, name string) ckpt.TensorInfo {
	x := ckpt.TensorInfo{Name: name, DType: safetensors.U8}
	var edges [2][]int64
	for d := range edges {
		edges[d] = []int64{0}
		for range rapid.IntRange(1, 25).Draw(t, "cuts") {
			edges[d] = append(edges[d], edges[d][len(edges[d])-1]+rapid.Int64Range(1, 1000).Draw(t, "length"))
		}
		x.Shape = append(x.Shape, edges[d][len(edges[d])-1])
	}
	replicas := rapid.IntRange(1, 3).Draw(t, "replicas")
	for i := 1; i < len(edges[0]); i++ {
		for j := 1; j < len(edges[1]); j++ {
			for range replicas {
				x.Slices = append(x.Slices, ckpt.SliceInfo{Offset: []int64{edges[0][i-1], edges[1][j-1]},
					Shape: []int64{edges[0][i] - edges[0][i-1], edges[1][j] - edges[1][j-1]}, Begin: int64(i*1000 + j)})
			}
		}
	}
	return x
}
