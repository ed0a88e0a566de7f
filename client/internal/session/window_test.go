package session

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWindow()
		open := map[uint64]bool{}
		next := uint64(1)
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			if len(open) == 0 || rapid.Bool().Draw(t, "take") {
				n, err := w.take(context.Background())
				require.NoError(t, err)
				require.Equal(t, next, n)
				next++
				open[n] = true
			} else {
				n := rapid.SampledFrom(sortedKeys(open)).Draw(t, "finish")
				delete(open, n)
				w.finish(n)
			}
			low := next
			for n := range open {
				low = min(low, n)
			}
			below, _ := w.acked()
			require.Equal(t, low, below)
		}
	})
}

func sortedKeys(m map[uint64]bool) []uint64 {
	var keys []uint64
	for n := range uint64(1000) {
		if m[n] {
			keys = append(keys, n)
		}
	}
	return keys
}

func TestWindowIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWindow()
		for range maxOutstanding {
			_, err := w.take(context.Background())
			require.NoError(t, err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := w.take(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		w.finish(2) // not the lowest: nothing moves
		got := make(chan uint64, 1)
		go func() {
			n, _ := w.take(context.Background())
			got <- n
		}()
		synctest.Wait()
		require.Empty(t, got)
		w.finish(1)
		require.EqualValues(t, maxOutstanding+1, <-got)
	})
}
