package stripeio

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPace(t *testing.T) {
	p := newPace(50 * time.Millisecond)
	require.Equal(t, 50*time.Millisecond, p.late(4<<20))
	for i := range 64 {
		p.observe(4<<20, time.Duration(i)*10*time.Millisecond)
	}
	require.InDelta(t, 600, p.late(4<<20).Milliseconds(), 15)
	require.Equal(t, 50*time.Millisecond, p.late(4<<10), "another size is another matter")
	for range 64 {
		p.observe(4<<20, time.Minute)
	}
	require.Equal(t, latest, p.late(4<<20))
	spent := 0
	for p.spend(1) {
		spent++
	}
	require.LessOrEqual(t, spent, maxCredit)
	require.False(t, p.spend(1))
	for range 10 {
		p.observe(1, 0)
	}
	require.True(t, p.spend(1), "a tenth of requests")
	require.False(t, p.spend(1))
}

// TestAQueueThatMovesIsNotLate: with 100 bytes requested at once, a request is not late while bytes arrive,
// until 200 have.
func TestAQueueThatMovesIsNotLate(t *testing.T) {
	var q queue
	q.arrived.Add(1000)
	w := q.join()
	q.open.Add(100) // others may be made after it, at the same time
	require.False(t, q.moves(&w), "nothing arrived")
	q.arrived.Add(1)
	q.open.Add(-50)
	require.True(t, q.moves(&w))
	require.False(t, q.moves(&w), "nothing arrived since the last look")
	q.arrived.Add(198)
	require.True(t, q.moves(&w))
	q.arrived.Add(1)
	require.False(t, q.moves(&w), "its turn has passed")
}
