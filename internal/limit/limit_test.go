package limit_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/limit"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
)

// A wait ends with the patience: Timeout, one count, and one log line in ten
// seconds.
func TestWaitBeyondThePatienceIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		metric := limit.NewMetrics(nil, "test")
		s := limit.NewSemaphore(10, limit.Resource{Name: "buffers", Patience: time.Minute, Advice: "raise --memory",
			Reports: limit.NewReporter(slog.New(slog.NewTextHandler(&log, nil)), metric)})
		require.NoError(t, s.Acquire(t.Context(), 8))
		began := time.Now()
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			require.Equal(t, moraine.Timeout, moraine.KindOf(s.Acquire(ctx, 3)))
			cancel()
		}
		require.Equal(t, 3*time.Second, time.Since(began))
		require.Equal(t, 1, strings.Count(log.String(), "resource wait exceeded"), log.String())
		require.Contains(t, log.String(), "resource=buffers")
		err := s.Acquire(t.Context(), 3)
		require.Equal(t, 63*time.Second, time.Since(began))
		require.EqualError(t, err, "wait: buffers: timed out: none became free within 1m0s: raise --memory")
		require.Contains(t, log.String(), "suppressed=2")
		require.Equal(t, 4.0, count(t, metric, "buffers"))
		require.EqualValues(t, 8, s.InUse())
		s.Release(8)
		require.NoError(t, s.Acquire(t.Context(), 10))
	})
}

// A cancelled wait is not reported, and returns the caller's cause.
func TestACallerThatGivesUpIsNotReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		metric := limit.NewMetrics(nil, "test")
		s := limit.NewSemaphore(1, limit.Resource{Name: "slots", Patience: time.Minute, Reports: limit.NewReporter(nil, metric)})
		require.True(t, s.TryAcquire(1))
		for _, cause := range []error{nil, &moraine.Error{Op: "end", Kind: moraine.Unavailable}, errors.New("no kind")} {
			ctx, stop := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { stop(cause) })
			want := moraine.Canceled
			var m *moraine.Error
			if errors.As(cause, &m) {
				want = m.Kind
			}
			require.Equal(t, want, moraine.KindOf(s.Acquire(ctx, 1)))
		}
		require.Zero(t, count(t, metric, "slots"))
		require.Equal(t, moraine.TooLarge, moraine.KindOf(s.Acquire(t.Context(), 2)))
	})
}

// A waiting caller gets units that are released before its patience ends.
func TestWaitersAreServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := limit.NewSemaphore(4, limit.Resource{Name: "slots", Patience: time.Second})
		require.True(t, s.TryAcquire(4))
		time.AfterFunc(time.Second/2, func() { s.Release(4) })
		require.NoError(t, s.Acquire(t.Context(), 2))
		require.EqualValues(t, 2, s.InUse())
		s.Release(2)
		require.Zero(t, s.InUse())
	})
}

func count(t *testing.T, metric *prometheus.CounterVec, resource string) float64 {
	t.Helper()
	var m dto.Metric
	require.NoError(t, metric.WithLabelValues(resource).Write(&m))
	return m.GetCounter().GetValue()
}
