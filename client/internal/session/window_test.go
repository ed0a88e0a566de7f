package session

import (
	"bytes"
	"context"
	"crypto/rand"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/metrics"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/limit"
)

func TestWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWindow(&limit.Resource{}, 1)
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
		w := newWindow(&limit.Resource{}, 1)
		for range maxOutstanding {
			_, err := w.take(context.Background())
			require.NoError(t, err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := w.take(ctx)
		require.Equal(t, moraine.Timeout, moraine.KindOf(err))
		w.finish(2) // not the lowest: low does not change
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

// A session has its maximum of requests in flight, or another call is opening one. A call whose
// context has no deadline then fails when the patience ends, with a log line. Afterwards the
// next one succeeds.
func TestASessionIsNotWaitedForBeyondThePatience(t *testing.T) {
	const patience = 30 * time.Second
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		m := New(Config{Metadata: [][]string{{"a:1"}}, AttemptTimeout: 5 * time.Second, Patience: patience},
			Deps{Dialer: &refuser{}, Clock: clock.System{}, Log: slog.New(slog.DiscardHandler), Metrics: metrics.NewMetrics(nil), Random: rand.Reader,
				Reports: limit.NewReporter(slog.New(slog.NewTextHandler(&log, nil)), nil)})
		w := newWindow(&m.numbers, 1)
		for range maxOutstanding {
			_, err := w.take(t.Context())
			require.NoError(t, err)
		}
		require.True(t, m.opening.TryAcquire(1))
		for resource, call := range map[string]func() error{
			"requests in flight of a session": func() error { _, err := w.take(context.Background()); return err },
			"turn to open a session":          func() error { _, err := m.open(context.Background(), nil); return err },
		} {
			ended := make(chan error, 1)
			go func() { ended <- call() }()
			select {
			case err := <-ended:
				require.Equal(t, moraine.Timeout, moraine.KindOf(err), err)
			case <-time.After(2 * patience):
				t.Errorf("%s: waited for %v with a patience of %v", resource, 2*patience, patience)
			}
			require.Equal(t, 1, strings.Count(log.String(), resource), log.String())
		}
		m.opening.Release(1)
		w.finish(1)
		_, err := w.take(context.Background())
		require.NoError(t, err)
		_, err = m.open(context.Background(), nil)
		require.Equal(t, moraine.Unauthenticated, moraine.KindOf(err), "the request reaches the server: %v", err)
	})
}
