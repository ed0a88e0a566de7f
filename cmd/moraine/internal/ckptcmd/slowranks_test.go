package ckptcmd

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
)

// TestSlowestRanks: of many ranks the ten that sealed last are shown, the last first.
func TestSlowestRanks(t *testing.T) {
	begun := time.Unix(1000, 0)
	sealed := map[uint32]time.Time{}
	for rank := range uint32(1000) {
		sealed[rank] = begun.Add(time.Duration(10+(rank*7)%1000) * time.Millisecond)
	}
	s := slowestRanks(ckpt.StepInfo{Step: 5, Attempt: 2, World: 1000}, begun, sealed)
	require.Len(t, s.Ranks, maxShownRanks)
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

// TestAWaitIsNoChange: the time alone prints no new line.
func TestAWaitIsNoChange(t *testing.T) {
	s := runState{Waiting: []waiting{{Step: 1, SinceBegun: 1, SinceFirstSeal: 2, Missing: []uint32{3}}}}
	one, err := s.withoutTime()
	require.NoError(t, err)
	s.Waiting[0].SinceBegun, s.Waiting[0].SinceFirstSeal = 5, 6
	two, err := s.withoutTime()
	require.NoError(t, err)
	require.Equal(t, string(one), string(two))
	require.Equal(t, 5.0, s.Waiting[0].SinceBegun, "what is printed keeps it")
	s.Waiting[0].Missing = nil
	three, err := s.withoutTime()
	require.NoError(t, err)
	require.NotEqual(t, string(one), string(three))
}
