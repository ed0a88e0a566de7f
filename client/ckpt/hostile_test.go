package ckpt_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client/ckpt"
)

// TestTheCheckOfAStepIsBounded: slices can be cut so that each pair would have to be compared. The check
// gives up, and a mover that has lost its lease stops it.
func TestTheCheckOfAStepIsBounded(t *testing.T) {
	var v *ckpt.Verdict
	err := ckpt.CheckStaircase(t.Context(), 2000, 1<<20)
	require.True(t, errors.As(err, &v), "%v", err)
	require.ErrorContains(t, err, "takes too long")
	err = ckpt.CheckStaircase(t.Context(), 2000, 1<<32)
	require.True(t, errors.As(err, &v), "%v", err)
	require.ErrorContains(t, err, "is in no part", "the work that this cut needs is within the bound")

	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	err = ckpt.CheckStaircase(canceled, 2000, 1<<32)
	require.ErrorIs(t, err, context.Canceled)
	require.False(t, errors.As(err, &v), "a step is not aborted because its check was canceled")
}

// TestHeadersOfAnAdoptionAreBounded: a directory with many clones of a file that has a long header ends
// with a verdict, not with the memory of the mover.
func TestHeadersOfAnAdoptionAreBounded(t *testing.T) {
	var v *ckpt.Verdict
	require.NoError(t, ckpt.TakeHeaders(t.Context(), 1<<30, 1<<29, 1<<29))
	err := ckpt.TakeHeaders(t.Context(), 1<<30, 1<<29, 1<<29, 1)
	require.True(t, errors.As(err, &v), "%v", err)
}
