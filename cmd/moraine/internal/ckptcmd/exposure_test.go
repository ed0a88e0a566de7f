package ckptcmd

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
)

// TestExposure: what a crash would lose counts from the newest good step of a level to the newest that the last
// attempt has begun.
func TestExposure(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(1000+s), 0) }
	committed := func(attempt uint32, step uint64, s int) ckpt.StepInfo {
		return ckpt.StepInfo{Attempt: attempt, Step: step, State: ckpt.StepCommitted, CommittedAt: at(s), Reached: map[moraine.Level]time.Time{moraine.NVMe: at(s + 1)}}
	}
	steps := []ckpt.StepInfo{
		committed(1, 900, 0), // given up: attempt 2 went back
		committed(2, 100, 10), committed(2, 200, 20), committed(2, 210, 25),
		{Attempt: 2, Step: 220, State: ckpt.StepOpen}, {Attempt: 2, Step: 230, State: ckpt.StepAborted},
	}
	got := exposures(steps, map[moraine.Level]ckpt.StepInfo{moraine.Memory: steps[3], moraine.NVMe: steps[1]}, at(40))
	require.Equal(t, []exposure{
		{Level: "memory", Step: 210, Attempt: 2, Committed: at(25), LostSteps: 10, LostSeconds: 15},
		{Level: "nvme", Step: 100, Attempt: 2, Committed: at(10), Reached: at(11), LostSteps: 120, LostSeconds: 30},
		{Level: "object", LostSteps: 220},
	}, got)
	require.False(t, got[2].found())
}

// TestPolicyRows: a rule in words.
func TestPolicyRows(t *testing.T) {
	for _, c := range []struct {
		rule          ckpt.LevelPolicy
		belong, keeps string
	}{
		{ckpt.LevelPolicy{Level: moraine.NVMe}, "all", "all"},
		{ckpt.LevelPolicy{Level: moraine.Object}, "what is flushed", "all"},
		{ckpt.LevelPolicy{Level: moraine.Object, Every: 500, KeepLast: 3, KeepTags: []string{"a", "b"}}, "every 500", "last 3, or tags a,b"},
		{ckpt.LevelPolicy{Level: moraine.Memory, KeepEvery: 10, KeepFor: time.Hour, KeepBytes: 1 << 30}, "all", "every 10, or for 1h0m0s, or newest 1.0 GiB"},
	} {
		row := levelRowOf(c.rule, true)
		require.Equal(t, c.belong, row.belongs())
		require.Equal(t, c.keeps, row.keeps())
	}
}

// TestWaitsFor: what a step waits for, in words.
func TestWaitsFor(t *testing.T) {
	require.Equal(t, "3, 7", rankList([]uint32{3, 7}, 0))
	require.Equal(t, "0, 1 and 990 more", rankList([]uint32{0, 1}, 990))
	require.Equal(t, "a mover checks it", waitsFor(stepRow{State: "sealed"}))
	require.Equal(t, "bytes are lost", waitsFor(stepRow{State: "lost", Reason: "bytes are lost"}))
}
