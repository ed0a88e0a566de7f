package ckpt_test

import (
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/stretchr/testify/require"
)

// TestWaitRefusesTheLevelLocal waits for level local, which no save reaches: staged bytes are
// only in the trainer's own memory.
func TestWaitRefusesTheLevelLocal(t *testing.T) {
	f := newFake()
	s, err := openRun(t, f, 0, 1).Begin(t.Context(), 1, ckpt.BeginOptions{})
	require.NoError(t, err)
	require.NoError(t, addModel(t.Context(), s, makeModel(1), 0, 1))
	for _, level := range []moraine.Level{0, moraine.Local, moraine.Object + 1} {
		info, err := s.Wait(t.Context(), level)
		require.ErrorIs(t, err, moraine.Unimplemented, "before the seal, level %s", level)
		require.Zero(t, info.Level)
	}
	require.NoError(t, s.Seal(t.Context()))
	for _, level := range []moraine.Level{0, moraine.Local, moraine.Object + 1} {
		info, err := s.Wait(t.Context(), level)
		require.ErrorIs(t, err, moraine.Unimplemented, "after the seal, level %s", level)
		require.Zero(t, info.Level)
	}
	_, err = s.Wait(t.Context(), moraine.Local)
	require.ErrorContains(t, err, "memory of this process")
}
