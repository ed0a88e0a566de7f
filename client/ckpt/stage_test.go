package ckpt_test

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
	"github.com/stretchr/testify/require"
)

// TestStagedBytesAndDigests stages tensors of unusual sizes, across segments, and reads them
// back with their digests.
func TestStagedBytesAndDigests(t *testing.T) {
	f, ctx := newFake(), t.Context()
	r := openRun(t, f, 0, 1)
	s, err := r.Begin(ctx, 1, ckpt.BeginOptions{})
	require.NoError(t, err)
	want := map[string][]byte{}
	rng := rand.NewChaCha8([32]byte{9})
	for name, n := range map[string]int{"a": 0, "b": 1, "c": 4095, "d": 4096, "e": 4097, "f": 64<<10 + 1, "g": 4<<20 + 5,
		"h": 33 << 20, "i": 5, "j": 8<<20 - 1} {
		p := make([]byte, n)
		rng.Read(p)
		want[name] = append([]byte{}, p...)
		require.NoError(t, s.AddTensor(ctx, ckpt.Tensor{Name: name, DType: safetensors.U8, Shape: []int64{int64(n)}, Data: p}))
		clear(p) // the trainer continues
	}
	require.NoError(t, s.Seal(ctx))
	<-s.Done()
	require.NoError(t, f.check(ctx, stepKey(r, 1)))
	k := resolve(t, f)
	for name, p := range want {
		got, err := k.ReadTensor(ctx, name)
		require.NoError(t, err)
		require.True(t, string(p) == string(got), name)
	}
	_, err = k.Verify(ctx)
	require.NoError(t, err)
}

// BenchmarkAddTensor measures a trainer's stall: bytes copied and checksummed per second, into
// memory that is already mapped.
func BenchmarkAddTensor(b *testing.B) {
	const size = 256 << 20
	f := newFake()
	ctx := context.Background()
	r, err := ckpt.OpenRunOn(ctx, f, "/runs/a", ckpt.RunOptions{Launch: ckpt.Launch{Name: "l"}, StagingBytes: 2 * size, Prefault: 2 * size})
	require.NoError(b, err)
	defer r.Close(ctx)
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i)
	}
	b.SetBytes(size)
	for i := uint64(0); b.Loop(); i++ {
		b.StopTimer()
		s, err := r.Begin(ctx, i, ckpt.BeginOptions{})
		require.NoError(b, err)
		b.StartTimer()
		require.NoError(b, s.AddTensor(ctx, ckpt.Tensor{Name: "w", DType: safetensors.U8, Shape: []int64{size}, Data: data}))
		b.StopTimer()
		s.Abort(nil)
		<-s.Done()
		b.StartTimer()
	}
}
