package ckpt_test

import (
	"slices"
	"testing"

	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

type slice struct {
	rank          uint32
	dtype         ckpt.DType
	global        []int64
	offset, shape []int64
	digest        byte
}

func at(rank uint32, global, offset, shape []int64) slice {
	return slice{rank: rank, dtype: safetensors.F32, global: global, offset: offset, shape: shape}
}

func coverageOf(list []slice) (ckpt.TensorInfo, error) {
	return ckpt.CheckCoverage("w", func(add func(uint32, ckpt.DType, []int64, []int64, []int64, ckpt.Digest) error) error {
		for _, s := range list {
			if err := add(s.rank, s.dtype, s.global, s.offset, s.shape, ckpt.Digest{s.digest}); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestCoverage(t *testing.T) {
	g := []int64{8, 4}
	other := at(3, g, []int64{0, 0}, []int64{4, 4})
	other.digest = 1
	bf16 := at(2, g, []int64{4, 0}, []int64{4, 4})
	bf16.dtype = safetensors.BF16
	for name, c := range map[string]struct {
		list []slice
		want string
	}{
		"whole":             {[]slice{at(0, g, []int64{0, 0}, g)}, ""},
		"rows":              {[]slice{at(1, g, []int64{4, 0}, []int64{4, 4}), at(0, g, []int64{0, 0}, []int64{4, 4})}, ""},
		"rows and an empty": {[]slice{at(1, g, []int64{0, 0}, []int64{8, 4}), at(0, g, []int64{8, 0}, []int64{0, 4})}, ""},
		"grid":              {[]slice{at(0, g, []int64{0, 0}, []int64{4, 2}), at(1, g, []int64{0, 2}, []int64{4, 2}), at(2, g, []int64{4, 0}, []int64{4, 1}), at(3, g, []int64{4, 1}, []int64{4, 3})}, ""},
		"scalar":            {[]slice{at(0, []int64{}, []int64{}, []int64{})}, ""},
		"scalar on all":     {[]slice{at(0, []int64{}, []int64{}, []int64{}), at(1, []int64{}, []int64{}, []int64{})}, ""},
		"no elements":       {[]slice{at(0, []int64{0, 4}, []int64{0, 0}, []int64{0, 4})}, ""},
		"replicas":          {[]slice{at(0, g, []int64{0, 0}, g), at(1, g, []int64{0, 0}, g)}, ""},
		"replicas that differ": {[]slice{at(0, g, []int64{0, 0}, []int64{4, 4}), other, at(1, g, []int64{4, 0}, []int64{4, 4})},
			`tensor "w": ranks 0 and 3 both saved [0:4, 0:4], with different bytes`},
		"gap at the end": {[]slice{at(0, g, []int64{0, 0}, []int64{3, 4}), at(5, g, []int64{3, 0}, []int64{4, 4})},
			`tensor "w" of shape [8 4]: [7:8, 0:4] is in no part (slices came from ranks 0, 5)`},
		"gap inside": {[]slice{at(0, g, []int64{0, 0}, []int64{4, 2}), at(1, g, []int64{0, 3}, []int64{4, 1}), at(2, g, []int64{4, 0}, []int64{4, 4})},
			`[0:4, 2:3] is in no part`},
		"nothing":    {[]slice{at(0, g, []int64{0, 0}, []int64{0, 4})}, `[0:8, 0:4] is in no part (slices came from no rank)`},
		"overlap":    {[]slice{at(0, g, []int64{0, 0}, []int64{5, 4}), at(1, g, []int64{4, 0}, []int64{4, 4})}, `[0:5, 0:4] of rank 0 overlaps [4:8, 0:4] of rank 1`},
		"inside":     {[]slice{at(0, g, []int64{0, 0}, g), at(1, g, []int64{1, 1}, []int64{1, 1})}, `overlaps [1:2, 1:2] of rank 1`},
		"other type": {[]slice{at(0, g, []int64{0, 0}, []int64{4, 4}), bf16}, `rank 0 declares F32 [8 4], rank 2 declares BF16 [8 4]`},
		"other size": {[]slice{at(0, g, []int64{0, 0}, []int64{4, 4}), at(1, []int64{9, 4}, []int64{4, 0}, []int64{5, 4})}, `rank 0 declares F32 [8 4], rank 1 declares F32 [9 4]`},
	} {
		_, err := coverageOf(c.list)
		if c.want == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, c.want, name)
		}
	}
}

// TestCoverageAgainstCells compares the check with a count of every element.
func TestCoverageAgainstCells(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dims := rapid.IntRange(1, 3).Draw(t, "dims")
		global := rapid.SliceOfN(rapid.Int64Range(1, 5), dims, dims).Draw(t, "global")
		var list []slice
		cut(t, global, make([]int64, dims), global, &list)
		// Drop some, and grow one: the result may be wrong.
		list = rapid.Permutation(list).Draw(t, "order")
		list = list[:rapid.IntRange(max(len(list)-1, 1), len(list)).Draw(t, "kept")]
		if rapid.Bool().Draw(t, "grow") {
			s := &list[rapid.IntRange(0, len(list)-1).Draw(t, "which")]
			d := rapid.IntRange(0, dims-1).Draw(t, "dim")
			if s.offset[d]+s.shape[d] < global[d] {
				s.shape = slices.Clone(s.shape)
				s.shape[d]++
			}
		}
		exact := true
		for _, n := range counts(global, list) {
			exact = exact && n == 1
		}
		_, err := coverageOf(list)
		if exact != (err == nil) {
			t.Fatalf("exact %v, the check says %v, slices %+v", exact, err, list)
		}
	})
}

// cut splits a range at random into slices that cover it exactly.
func cut(t *rapid.T, global, offset, shape []int64, out *[]slice) {
	d := rapid.IntRange(0, len(shape)-1).Draw(t, "cut along")
	if shape[d] < 2 || rapid.IntRange(0, 3).Draw(t, "stop") == 0 {
		*out = append(*out, at(uint32(len(*out)), global, offset, shape))
		return
	}
	at := rapid.Int64Range(1, shape[d]-1).Draw(t, "cut at")
	low, high, off := slices.Clone(shape), slices.Clone(shape), slices.Clone(offset)
	low[d], high[d], off[d] = at, shape[d]-at, offset[d]+at
	cut(t, global, offset, low, out)
	cut(t, global, off, high, out)
}

// counts returns for each element of global how many slices contain it.
func counts(global []int64, list []slice) []int {
	total := int64(1)
	for _, g := range global {
		total *= g
	}
	n := make([]int, total)
	for i := range n {
		for _, s := range list {
			in, rest := true, int64(i)
			for d := len(global) - 1; d >= 0; d-- {
				x := rest % global[d]
				rest /= global[d]
				in = in && x >= s.offset[d] && x < s.offset[d]+s.shape[d]
			}
			if in {
				n[i]++
			}
		}
	}
	return n
}

// TestCoverageOfManySlices is a world of ranks that cut along either dimension.
func TestCoverageOfManySlices(t *testing.T) {
	const world = 4096
	for d := range 2 {
		global := []int64{world, world}
		var list []slice
		for r := range int64(world) {
			off, shape := []int64{0, 0}, []int64{world, world}
			off[d], shape[d] = r, 1
			list = append(list, at(uint32(r), global, off, shape))
		}
		_, err := coverageOf(list)
		require.NoError(t, err)
		_, err = coverageOf(slices.Delete(list, 77, 78))
		require.ErrorContains(t, err, []string{"[77:78, 0:4096]", "[0:4096, 77:78]"}[d])
	}
}

// TestSharedSlicesAreStored: a slice that a rank leaves to another one must be in a part, at the same
// place and with the same bytes.
func TestSharedSlicesAreStored(t *testing.T) {
	whole, zero := []int64{8, 4}, []int64{0, 0}
	one, two := ckpt.Digest{1}, ckpt.Digest{2}
	require.NoError(t, ckpt.CheckShared(whole, zero, whole, one, zero, whole, one))
	require.NoError(t, ckpt.CheckShared(whole, zero, whole, one, zero, []int64{0, 4}, two), "it has no elements")
	for _, c := range []struct {
		offset, shape []int64
		digest        ckpt.Digest
		want          string
	}{
		{zero, whole, two, `tensor "w": ranks 0 and 1 both have [0:8, 0:4], with different bytes`},
		{zero, []int64{4, 4}, one, `tensor "w": rank 1 saved nothing of [0:4, 0:4], because rank 0 was to store it, and no rank has`},
		{[]int64{4, 0}, []int64{4, 4}, one, "no rank has"},
	} {
		require.ErrorContains(t, ckpt.CheckShared(whole, zero, whole, one, c.offset, c.shape, c.digest), c.want)
	}
}
