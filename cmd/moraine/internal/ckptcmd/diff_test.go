package ckptcmd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/stretchr/testify/require"
)

// TestDiffIsPrinted: rows, what was left off, and a summary; and the same in JSON.
func TestDiffIsPrinted(t *testing.T) {
	a, b, err := diffSides([]string{"moraine:///runs/a", "1", "moraine:///runs/b", "2"})
	require.NoError(t, err)
	same, other, err := diffSides([]string{"moraine:///runs/a", "1", "2"})
	require.NoError(t, err)
	require.Equal(t, same.run, other.run)
	require.Equal(t, []uint64{1, 2, 2}, []uint64{same.step, other.step, b.step})

	rows := []diffRow{
		diffRowOf(ckpt.Difference{Kind: ckpt.ContentDiffers, Tensor: "w", A: "F32 [4]", B: "F32 [4]", Where: "[0:2]"}),
		diffRowOf(ckpt.Difference{Kind: ckpt.OnlyInB, Blob: "rng", Rank: 0, B: "7 bytes"}),
	}
	report := ckpt.DiffReport{Tensors: 9, Blobs: 1, Differences: 5, ByKind: map[ckpt.DifferenceKind]int{ckpt.ContentDiffers: 4, ckpt.OnlyInB: 1}}
	var out bytes.Buffer
	env := &cli.Env{Out: &out, Err: &out}
	require.NoError(t, printDiff(env, a, b, report, rows))
	for _, want := range []string{"[0:2]", "blob rng of rank 0", "only in B", "and 3 more: --all prints them",
		"step 1 of moraine:///runs/a and step 2 of moraine:///runs/b differ in 5 names: 9 tensors and 1 blob compared"} {
		require.Contains(t, out.String(), want)
	}

	out.Reset()
	env.Global.JSON = true
	require.NoError(t, printDiff(env, a, b, report, rows))
	var got diffResult
	require.NoError(t, json.Unmarshal(out.Bytes(), &got))
	require.Equal(t, "[false 5]", fmt.Sprint([]any{got.Equal, got.Differences}))
	require.Equal(t, rows, got.Rows)
}
