package integration_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/devcluster"
)

// watched is what `ckpt watch --json` says of ranks.
type watched struct {
	Waiting []struct {
		Step       uint64
		Sealed     uint32
		Begun      time.Time
		FirstSeal  time.Time `json:"first_seal"`
		SinceBegun float64   `json:"since_begun_seconds"`
		SinceFirst float64   `json:"since_first_seal_seconds"`
		Missing    []uint32
		More       uint32 `json:"more_missing"`
		Ranks      []struct {
			Rank  uint32
			Begun time.Time
		} `json:"missing_ranks"`
	}
	Slowest *struct {
		Step  uint64
		Begun time.Time
		Ranks []struct {
			Rank   uint32
			Began  float64 `json:"began_seconds"`
			Sealed float64 `json:"sealed_seconds"`
			Behind float64 `json:"behind_first_seconds"`
		}
	}
}

// TestWatchNamesSlowRanks: `ckpt watch` names the ranks for which an open step waits, and since when, and
// the ranks that sealed the last committed step last.
func TestWatchNamesSlowRanks(t *testing.T) {
	t.Parallel()
	a := newAgentProc(t, startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1}))
	a.start()
	env := settingsFor(a.c)
	watch := func() (w watched) {
		t.Helper()
		require.NoError(t, json.Unmarshal([]byte(works(t, env, "ckpt", "watch", "moraine:///runs/a", "--once", "--json")), &w))
		return w
	}
	save := func(step, rank, world int) {
		t.Helper()
		out, code := a.save(step, rank, world)
		require.Zero(t, code, out)
	}
	began := time.Now()
	save(1, 0, 3)
	var w watched
	require.Eventually(t, func() bool { w = watch(); return len(w.Waiting) == 1 && w.Waiting[0].Sealed == 1 }, time.Minute, 50*time.Millisecond)
	require.Nil(t, w.Slowest)
	open := w.Waiting[0]
	require.Equal(t, []uint32{1, 2}, open.Missing)
	require.Zero(t, open.More)
	require.WithinRange(t, open.Begun, began.Add(-time.Second), time.Now())
	require.WithinRange(t, open.FirstSeal, open.Begun, time.Now())
	require.GreaterOrEqual(t, open.SinceBegun, open.SinceFirst)
	require.Positive(t, open.SinceFirst)
	require.Len(t, open.Ranks, 2)
	require.Zero(t, open.Ranks[0].Begun, "it has not begun")
	text := works(t, env, "ckpt", "watch", "moraine:///runs/a", "--once")
	require.Regexp(t, `(?m)^ *1 +1 +2 +\S+ +\S+ +1, 2\s*$`, text)

	save(1, 2, 3)
	require.Eventually(t, func() bool { w = watch(); return w.Waiting[0].Sealed == 2 }, time.Minute, 50*time.Millisecond)
	require.Equal(t, []uint32{1}, w.Waiting[0].Missing)
	require.Equal(t, open.Begun, w.Waiting[0].Begun)
	require.Equal(t, open.FirstSeal, w.Waiting[0].FirstSeal)
	save(1, 1, 3)
	require.Eventually(t, func() bool { w = watch(); return w.Slowest != nil }, time.Minute, 50*time.Millisecond)
	require.Empty(t, w.Waiting)
	require.Equal(t, open.Begun, w.Slowest.Begun)
	require.Len(t, w.Slowest.Ranks, 3)
	for i, rank := range []uint32{1, 2, 0} { // the last first
		require.Equal(t, rank, w.Slowest.Ranks[i].Rank)
		require.LessOrEqual(t, w.Slowest.Ranks[i].Began, w.Slowest.Ranks[i].Sealed)
	}
	require.Positive(t, w.Slowest.Ranks[0].Began, "rank 1 began last")
	first := w.Slowest.Ranks[2]
	require.Zero(t, first.Behind)
	require.InDelta(t, open.FirstSeal.Sub(open.Begun).Seconds(), first.Sealed, 1e-6)
	require.Positive(t, w.Slowest.Ranks[1].Behind)

	save(2, 3, 14)
	require.Eventually(t, func() bool { w = watch(); return len(w.Waiting) == 1 && w.Waiting[0].Sealed == 1 }, time.Minute, 50*time.Millisecond)
	require.Equal(t, []uint32{0, 1, 2, 4, 5, 6, 7, 8, 9, 10}, w.Waiting[0].Missing)
	require.EqualValues(t, 3, w.Waiting[0].More)
	require.EqualValues(t, 1, w.Slowest.Step)
	text = works(t, env, "ckpt", "watch", "moraine:///runs/a", "--once")
	require.Contains(t, text, "0, 1, 2, 4, 5, 6, 7, 8, 9, 10 and 3 more")
	require.Contains(t, text, "step 1 (attempt 1): half of the 3 ranks had sealed after")
	require.Less(t, strings.Count(text, "\n"), 40, "one screen")
}
