package ckpt_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/stretchr/testify/require"
)

// TestWriteTensors writes tensors, small ones and one of several pieces, that four ranks saved.
func TestWriteTensors(t *testing.T) {
	f, m := newFake(), makeModel(4)
	big := make([]byte, 5*(5<<20))
	_, _ = rand.NewChaCha8([32]byte{9}).Read(big)
	m = append(m, model{{name: "big", dtype: ckpt.U8, shape: []int64{5, 5 << 20}, data: big}}...)
	save(t, f, m, 1, 4)
	k := resolve(t, f)
	var names []string
	var want []byte
	for _, x := range m {
		names, want = append(names, x.name), append(want, x.data...)
	}
	var got bytes.Buffer
	require.NoError(t, k.WriteTensors(t.Context(), &got, names...))
	require.True(t, bytes.Equal(want, got.Bytes()))

	require.ErrorIs(t, k.WriteTensors(t.Context(), &got, "step", "missing"), moraine.NotFound)
	full := errors.New("the disk is full")
	require.ErrorIs(t, k.WriteTensors(t.Context(), failing{full}, names...), full)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, k.WriteTensors(ctx, &got, names...), context.Canceled)
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// TestWriteFile writes each file of a step as it is stored, and finds a flipped bit.
func TestWriteFile(t *testing.T) {
	f := newFake()
	info := save(t, f, makeModel(4), 1, 2)
	k := resolve(t, f)
	for i, file := range k.Files() {
		var got bytes.Buffer
		require.NoError(t, k.WriteFile(t.Context(), &got, i))
		require.Equal(t, f.files[f.dirs[uint64(info.Dir)][file.Name]], got.Bytes())
	}
	f.corrupt(info.Dir, k.Files()[0].Name, int(k.Files()[0].Size-1))
	var got bytes.Buffer
	require.ErrorIs(t, resolve(t, f).WriteFile(t.Context(), &got, 0), moraine.Corrupt)
}
