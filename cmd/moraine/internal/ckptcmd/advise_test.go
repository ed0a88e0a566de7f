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

// TestObserved: the times between saves are those of the last attempt: between two attempts lies a failure.
func TestObserved(t *testing.T) {
	at := func(attempt uint32, step uint64, minute int) ckpt.StepInfo {
		return ckpt.StepInfo{Attempt: attempt, Step: step, CommittedAt: time.Unix(0, 0).Add(time.Duration(minute) * time.Minute)}
	}
	require.Zero(t, observe(nil, nil))
	require.Zero(t, observe([]ckpt.StepInfo{at(1, 10, 0), at(1, 20, 10)}, nil).mtbf(), "one launch")
	second := launch{Attempt: 2, FirstCommit: at(2, 30, 500).CommittedAt, Failure: true}
	require.Equal(t, observed{steps: 1, launches: []launch{second}, span: 500 * time.Minute}, observe([]ckpt.StepInfo{at(1, 10, 0), at(1, 20, 10), at(2, 30, 500)}, nil))
	three := []ckpt.StepInfo{at(1, 10, 0), at(3, 10, 100), at(3, 20, 120), at(3, 21, 135), at(3, 31, 300)}
	o := observe(three, nil)
	launches := []launch{{Attempt: 2, Failure: true}, {Attempt: 3, FirstCommit: at(3, 10, 100).CommittedAt, Failure: true}}
	require.Equal(t, observed{gap: 20 * time.Minute, steps: 4, perStep: 15 * time.Minute, launches: launches, span: 300 * time.Minute}, o)
	require.Contains(t, o.counted(), "As failures count the starts of attempts 2, 3.")
	planned := observe(three, []uint{2})
	require.Equal(t, 300*time.Minute, planned.mtbf(), "a planned restart is no failure")
	require.Contains(t, planned.counted(), "the starts of attempts 3. Attempts 2 do not: they were planned.")
	require.Zero(t, observe(three, []uint{2, 3}).mtbf())
	require.Equal(t, 150*time.Minute, o.mtbf(), "the launch that has no step counts")
	o.perStep = time.Second
	a := adviceOf(goodput.Model{MTBF: 4 * time.Hour, Stall: 2 * time.Second, Restore: 90 * time.Second}, o)
	require.EqualValues(t, 239, a.Intervals[0].Steps) // 3m59s of training
	o.perStep = time.Hour
	require.EqualValues(t, 1, adviceOf(goodput.Model{MTBF: 4 * time.Hour, Stall: 2 * time.Second}, o).Intervals[0].Steps, "at least one")
}
