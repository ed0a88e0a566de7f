package benchcmd

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/bench"
	"github.com/stretchr/testify/require"
)

// TestWhatWasMeasuredIsPrinted: the lines from before an error are printed, and the error is returned.
func TestWhatWasMeasuredIsPrinted(t *testing.T) {
	full := errors.New("no space")
	for _, json := range []bool{true, false} {
		var out, progress bytes.Buffer
		env := &cli.Env{Out: &out, Err: &progress}
		env.Global.JSON = json
		b := benchmark{name: "write", run: func(context.Context, *bench.Env) ([]bench.Line, error) {
			return []bench.Line{{Name: "first", Value: 7, Unit: "GB/s"}}, full
		}}
		err := runBenchmark(t.Context(), env, benchOptions{path: t.TempDir(), dir: t.TempDir(), scheme: "4+2"}, b)
		require.ErrorIs(t, err, full)
		require.Contains(t, out.String(), "first")
		out.Reset()
		b.run = func(context.Context, *bench.Env) ([]bench.Line, error) { return nil, full }
		require.ErrorIs(t, runBenchmark(t.Context(), env, benchOptions{path: t.TempDir(), dir: t.TempDir(), scheme: "4+2"}, b), full)
		require.Empty(t, out.String(), "no head of a table without lines")
	}
}
