package ckpt_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
	"github.com/morainefs/moraine/integration/memcluster"
)

// openStep opens a step of the fake's only run.
func openStep(t *testing.T, f *fakeCluster, step uint64) *ckpt.Checkpoint {
	t.Helper()
	r, err := ckpt.OpenRunOn(t.Context(), f, "/runs/a", ckpt.RunOptions{ReadOnly: true})
	require.NoError(t, err)
	k, err := r.Resolve(t.Context(), ckpt.ResolveOptions{Step: step, Exact: true})
	require.NoError(t, err)
	t.Cleanup(func() {
		k.Close()
		r.Close(context.Background())
	})
	return k
}

// diffOf returns all differences of two steps as lines.
func diffOf(t *testing.T, a, b *ckpt.Checkpoint) (lines []string, report ckpt.DiffReport) {
	t.Helper()
	report, err := ckpt.Diff(t.Context(), a, b, func(d ckpt.Difference) error {
		name := d.Tensor
		if d.Blob != "" {
			name = fmt.Sprintf("blob %s of rank %d", d.Blob, d.Rank)
		}
		lines = append(lines, fmt.Sprintf("%s: %s: %s|%s|%s", name, d.Kind, d.A, d.B, d.Where))
		return nil
	})
	require.NoError(t, err)
	require.Len(t, lines, report.Differences)
	return lines, report
}

// TestDiffByDigests compares steps of the same cut: Diff finds each kind of difference and reads no
// byte of a part.
func TestDiffByDigests(t *testing.T) {
	f, m := newFake(), makeModel(1)
	save(t, f, m, 1, 4)
	save(t, f, m, 2, 4)
	changed := makeModel(1)
	changed[0].data[50*2*64] ^= 1                                        // embed.weight, in the rows of rank 1
	changed[1].dtype = safetensors.I32                                   // layer.0.weight
	changed[2].shape, changed[2].data = []int64{6}, changed[2].data[:24] // layer.0.norm
	changed[4].name = "mask2"                                            // mask
	changed[5].data[3] ^= 0x10                                           // step, a scalar
	save(t, f, changed, 3, 4)

	lines, report := diffOf(t, openStep(t, f, 1), openStep(t, f, 2))
	require.Empty(t, lines)
	require.Equal(t, ckpt.DiffReport{Tensors: 7, Blobs: 4, ByKind: map[ckpt.DifferenceKind]int{}}, report)

	lines, report = diffOf(t, openStep(t, f, 1), openStep(t, f, 3))
	require.Equal(t, []string{
		"embed.weight: content: BF16 [101, 64]|BF16 [101, 64]|[26:52, 0:64]",
		"layer.0.norm: shape: F32 [7]|F32 [6]|",
		"layer.0.weight: dtype: F32 [64, 48]|I32 [64, 48]|",
		"mask: only in A: BOOL [13]||",
		"mask2: only in B: |BOOL [13]|",
		"step: content: I64 []|I64 []|[]",
	}, lines)
	require.Equal(t, 8, report.Tensors)
	require.Equal(t, 2, report.ByKind[ckpt.ContentDiffers])
	require.Zero(t, report.BytesRead)
}

// TestDiffReadsWhatIsCutElsewise compares steps of other cuts. Diff finds one changed byte anywhere,
// and none where there is none.
func TestDiffReadsWhatIsCutElsewise(t *testing.T) {
	f := newFake()
	const rows, columns = 5003, 7001 // 35 MB: three pieces
	data := make([]byte, rows*columns)
	rand.NewChaCha8([32]byte{7}).Read(data)
	w := model{{name: "w", dtype: safetensors.U8, shape: []int64{rows, columns}, data: data}}
	save(t, f, w, 1, 1)
	save(t, f, w, 2, 3)
	lines, report := diffOf(t, openStep(t, f, 1), openStep(t, f, 2))
	require.Equal(t, []string{"blob rng of rank 1: only in B: |15 bytes|", "blob rng of rank 2: only in B: |15 bytes|"}, lines)
	require.Equal(t, int64(2*len(data)), report.BytesRead)

	for step, at := range map[uint64]int{3: 0, 4: len(data) / 2, 5: len(data) - 1} {
		data[at] ^= 1
		save(t, f, w, step, 2)
		data[at] ^= 1
		lines, report = diffOf(t, openStep(t, f, step), openStep(t, f, 1))
		require.Len(t, lines, 2)
		require.Equal(t, 1, report.ByKind[ckpt.ContentDiffers])
		row := at / columns
		var from, to int
		_, err := fmt.Sscanf(lines[0], "w: content: U8 [5003, 7001]|U8 [5003, 7001]|[%d:%d, 0:7001]", &from, &to)
		require.NoError(t, err, lines[0])
		require.True(t, from <= row && row < to, lines[0])
	}
}

// TestPiecesCoverATensor: the pieces of any shape are disjoint, contiguous and within the bound.
func TestPiecesCoverATensor(t *testing.T) {
	for _, shape := range [][]int64{{}, {1}, {10}, {3, 5}, {2, 3, 4}, {4, 1, 9}, {0, 4}, {7, 11, 2, 3}} {
		for _, limit := range []int64{4, 8, 12, 20, 36, 1000} {
			want := int64(1)
			for _, n := range shape {
				want *= n
			}
			var next int64 // the row-major number of the element after the last piece
			require.NoError(t, ckpt.EachPiece(shape, 4, limit, func(offset, size []int64) (bool, error) {
				first, n := int64(0), int64(1)
				for d := range shape {
					first = first*shape[d] + offset[d]
					n *= size[d]
				}
				require.Equal(t, next, first, "shape %v, limit %d", shape, limit)
				require.True(t, n > 0 && 4*n <= limit)
				next += n
				return true, nil
			}))
			require.Equal(t, want, next, "shape %v, limit %d", shape, limit)
		}
	}
}

// TestDiffOnACluster compares two steps of a real run, and ends with the error of the caller.
func TestDiffOnACluster(t *testing.T) {
	inCluster(t, memcluster.Options{}, func(t *testing.T, c *memcluster.Cluster) {
		trainers := team(t, c, "l1", 2)
		saveAll(t, trainers, 1, 11)
		saveAll(t, trainers, 2, 11)
		saveAll(t, trainers, 3, 12)
		r := trainers[0].run
		open := func(step uint64) *ckpt.Checkpoint {
			k, err := r.Resolve(t.Context(), ckpt.ResolveOptions{Step: step, Exact: true})
			require.NoError(t, err)
			return k
		}
		one, two, three := open(1), open(2), open(3)
		defer one.Close()
		defer two.Close()
		defer three.Close()
		report, err := ckpt.Diff(t.Context(), one, two, func(ckpt.Difference) error { return nil })
		require.NoError(t, err)
		require.Zero(t, report.Differences)
		require.Positive(t, report.Tensors)
		report, err = ckpt.Diff(t.Context(), one, three, func(ckpt.Difference) error { return nil })
		require.NoError(t, err)
		require.Positive(t, report.ByKind[ckpt.ContentDiffers])
		require.Zero(t, report.BytesRead)
		_, err = ckpt.Diff(t.Context(), one, three, func(ckpt.Difference) error { return moraine.Canceled })
		require.ErrorIs(t, err, moraine.Canceled)
	})
}
