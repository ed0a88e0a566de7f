package ckpt_test

import (
	"bytes"
	"testing"

	"github.com/morainefs/moraine/client/ckpt"
	"pgregory.net/rapid"
)

// TestPlanAgainstElements cuts a tensor at random, plans the read of a random slice of it, and
// compares the bytes with those picked one by one.
func TestPlanAgainstElements(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dims := rapid.IntRange(0, 4).Draw(t, "dims")
		global := rapid.SliceOfN(rapid.Int64Range(1, 6), dims, dims).Draw(t, "global")
		elem := rapid.SampledFrom([]int64{1, 2, 8}).Draw(t, "elem")
		total := elem
		for _, g := range global {
			total *= g
		}
		whole := make([]byte, total)
		for i := range whole {
			whole[i] = byte(i*7 + i>>8)
		}
		saved := []slice{at(0, global, make([]int64, dims), global)}
		if dims > 0 {
			saved = nil
			cut(t, global, make([]int64, dims), global, &saved)
		}
		offset, shape := make([]int64, dims), make([]int64, dims)
		for d := range dims {
			offset[d] = rapid.Int64Range(0, global[d]-1).Draw(t, "offset")
			shape[d] = rapid.Int64Range(0, global[d]-offset[d]).Draw(t, "shape")
		}
		want := pick(whole, global, offset, shape, elem)
		got := bytes.Repeat([]byte{0xee}, len(want))
		taken := 0
		for _, s := range saved {
			file := pick(whole, global, s.offset, s.shape, elem)
			for _, r := range ckpt.PlanRuns(ckpt.SliceInfo{Offset: s.offset, Shape: s.shape}, elem, offset, shape) {
				copy(got[r[1]:r[1]+r[2]], file[r[0]:r[0]+r[2]])
				taken += int(r[2])
			}
		}
		if !bytes.Equal(got, want) || taken != len(want) {
			t.Fatalf("got %x (%d bytes moved), want %x", got, taken, want)
		}
	})
}

// pick copies a slice of whole element by element.
func pick(whole []byte, global, offset, shape []int64, elem int64) []byte {
	var out []byte
	n := int64(1)
	for _, s := range shape {
		n *= s
	}
	for i := range n {
		var at int64
		rest := i
		stride := elem
		for d := len(global) - 1; d >= 0; d-- {
			at += (offset[d] + rest%shape[d]) * stride
			rest /= shape[d]
			stride *= global[d]
		}
		out = append(out, whole[at:at+elem]...)
	}
	return out
}
