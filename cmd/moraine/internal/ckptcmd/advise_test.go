package ckptcmd

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/goodput"
	"github.com/stretchr/testify/require"
)

// TestAdvice: the command prints both formulas, the assumptions, and the run where one is given.
func TestAdvice(t *testing.T) {
	m := goodput.Model{MTBF: 4 * time.Hour, Stall: 2 * time.Second, Restore: 90 * time.Second}
	var out bytes.Buffer
	env := &cli.Env{Out: &out, Err: &out}
	require.NoError(t, printAdvice(env, adviceOf(m, observed{})))
	for _, want := range []string{"Daly 2006", "3m59s", "Young 1974", "4m0s", "97.73 %", "exponentially distributed", "stand still"} {
		require.Contains(t, out.String(), want)
	}
	require.NotContains(t, out.String(), "the run now")

	out.Reset()
	env.Global.JSON = true
	require.NoError(t, printAdvice(env, adviceOf(m, observed{gap: 30 * time.Minute, steps: 4})))
	var got advice
	require.NoError(t, json.Unmarshal(out.Bytes(), &got))
	require.Len(t, got.Intervals, 3)
	require.Equal(t, "the run now", got.Intervals[2].Method)
	require.Equal(t, 1798.0, got.Intervals[2].Interval)
	require.Less(t, got.Intervals[2].Goodput, got.Intervals[0].Goodput)
	require.NotEmpty(t, got.Assumptions)
}

// TestMedianGap looks at the last attempt only: between two attempts lies a failure.
func TestMedianGap(t *testing.T) {
	at := func(attempt uint32, minute int) ckpt.StepInfo {
		return ckpt.StepInfo{Attempt: attempt, CommittedAt: time.Unix(0, 0).Add(time.Duration(minute) * time.Minute)}
	}
	require.Zero(t, medianGap(nil))
	require.Equal(t, observed{steps: 1}, medianGap([]ckpt.StepInfo{at(1, 0), at(1, 10), at(2, 500)}))
	require.Equal(t, observed{gap: 20 * time.Minute, steps: 4}, medianGap([]ckpt.StepInfo{at(1, 0), at(2, 100), at(2, 120), at(2, 135), at(2, 300)}))
}
