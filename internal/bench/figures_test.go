package bench

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFiguresOutliveAnError: a part that fails ends a benchmark, and keeps what it and the parts before have measured. The
// limits are the better ones of the two measurements, or those of the first.
func TestFiguresOutliveAnError(t *testing.T) {
	full := errors.New("no space")
	var said []string
	f := figures{limits: ckptLimits{diskWrite: 2, diskRead: 4}, progress: func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }}
	write := func(_ context.Context, to *figures) error {
		to.add(func(l *ckptLimits) Line {
			return Line{Name: "write", Value: 1, Unit: "GB/s"}.against(l.diskWrite, "disk")
		})
		return nil
	}
	read := func(_ context.Context, to *figures) error {
		to.add(func(l *ckptLimits) Line {
			return Line{Name: "read", Value: 1, Unit: "GB/s"}.against(l.diskRead, "disk")
		})
		return full
	}
	never := func(context.Context, *figures) error { panic("a part ran after one that failed") }
	require.ErrorIs(t, f.measure(t.Context(), write, read, never), full)
	require.Equal(t, []string{"write: 1 GB/s, 0.50 of disk so far", "read: 1 GB/s, 0.25 of disk so far"}, said)
	lines := f.lines()
	require.Len(t, lines, 2)
	require.InDelta(t, 0.5, lines[0].Ratio, 1e-9)
	f.limits = f.limits.better(ckptLimits{diskWrite: 1, diskRead: 8})
	lines = f.lines()
	require.InDelta(t, 0.5, lines[0].Ratio, 1e-9)
	require.InDelta(t, 0.125, lines[1].Ratio, 1e-9)
}
