package ckptcmd

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/transport/wire"
)

// TestSlowestRanks: of many ranks the ten that sealed last are shown, the last first.
func TestSlowestRanks(t *testing.T) {
	begun := time.Unix(1000, 0)
	var parts []*wire.Part
	for rank := range uint32(1000) {
		at := begun.Add(time.Duration(10+(rank*7)%1000) * time.Millisecond)
		parts = append(parts, &wire.Part{Rank: rank, BegunAt: at.Add(-8 * time.Millisecond).UnixNano(), SealedAt: at.UnixNano()})
	}
	s := slowestRanks(ckpt.StepInfo{Step: 5, Attempt: 2, World: 1000}, begun, parts)
	require.Len(t, s.Ranks, maxShownRanks)
	require.InDelta(t, 1.001, s.Ranks[0].Began, 1e-9)
	require.InDelta(t, 1.009, s.Ranks[0].Sealed, 1e-9)
	require.InDelta(t, 0.999, s.Ranks[0].Behind, 1e-9)
	require.EqualValues(t, 857, s.Ranks[0].Rank) // 857*7 is 999 modulo 1000
	for i := 1; i < len(s.Ranks); i++ {
		require.Less(t, s.Ranks[i].Sealed, s.Ranks[i-1].Sealed)
	}
	require.InDelta(t, 0.509, s.Median, 0.001)
	var out bytes.Buffer
	s.print(&cli.Env{Out: &out})
	require.Contains(t, out.String(), "step 5 (attempt 2): half of the 1000 ranks had sealed after 509ms; the slowest:")
	(*slowest)(nil).print(&cli.Env{Out: &out}) // a step of one rank
}

// TestMissingRanks: of an open step those come first that have not begun, then those that began last. What a node
// has sent is that of its ranks together.
func TestMissingRanks(t *testing.T) {
	now := time.Unix(1000, 0)
	ago := func(seconds int) int64 { return now.Add(-time.Duration(seconds) * time.Second).UnixNano() }
	const one, other = 7, 8 // sessions
	w := missingOf([]*wire.Part{
		{Rank: 0, BegunAt: ago(90), SealedAt: ago(60)},
		{Rank: 1, BegunAt: ago(90), Session: one, Reserved: 100, Sent: 130},
		{Rank: 2, BegunAt: ago(20), Session: one, Reserved: 100, Sent: 130},
		{Rank: 4, BegunAt: ago(80), SealedAt: ago(50)},
		{Rank: 5, BegunAt: ago(20), Session: other, Sent: 9},
		{Rank: 9, BegunAt: ago(20), Session: other}, // of no rank that the step has
	}, 7, now)
	require.EqualValues(t, 2, w.Sealed)
	require.Equal(t, 60.0, w.SinceFirstSeal)
	require.Equal(t, []uint32{3, 6, 2, 5, 1}, w.Missing)
	require.Equal(t, []missingRank{{Rank: 3}, {Rank: 6},
		{Rank: 2, Begun: now.Add(-20 * time.Second), SinceBegun: 20, Sent: 130, Announced: 200, Sharing: 2},
		{Rank: 5, Begun: now.Add(-20 * time.Second), SinceBegun: 20, Sent: 9, Sharing: 1},
		{Rank: 1, Begun: now.Add(-90 * time.Second), SinceBegun: 90, Sent: 130, Announced: 200, Sharing: 2}}, w.Ranks)
	var out bytes.Buffer
	runState{Waiting: []waiting{*w}}.printWaiting(&cli.Env{Out: &out})
	require.Regexp(t, `3 +not yet`, out.String())
	require.Regexp(t, `2 +20s ago +130 B of 200 B \(of 2 ranks\)`, out.String())

	w = missingOf(nil, 1000, now)
	require.Len(t, w.Missing, maxShownRanks)
	require.EqualValues(t, 990, w.More)
}

// TestAWaitIsNoChange: the time alone prints no new line.
func TestAWaitIsNoChange(t *testing.T) {
	s := runState{Waiting: []waiting{{Step: 1, SinceBegun: 1, SinceFirstSeal: 2, Missing: []uint32{3}, Ranks: []missingRank{{Rank: 3, Begun: time.Unix(1, 0), SinceBegun: 1}}}}}
	one, err := s.withoutTime()
	require.NoError(t, err)
	s.Waiting[0].SinceBegun, s.Waiting[0].SinceFirstSeal, s.Waiting[0].Ranks[0].SinceBegun = 5, 6, 7
	two, err := s.withoutTime()
	require.NoError(t, err)
	require.Equal(t, string(one), string(two))
	require.Equal(t, 5.0, s.Waiting[0].SinceBegun, "what is printed keeps it")
	require.Equal(t, 7.0, s.Waiting[0].Ranks[0].SinceBegun)
	s.Waiting[0].Missing = nil
	three, err := s.withoutTime()
	require.NoError(t, err)
	require.NotEqual(t, string(one), string(three))
}
