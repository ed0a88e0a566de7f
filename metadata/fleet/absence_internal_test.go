package fleet

import (
	"bytes"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/metadata/lead"
)

// An announcement that does not get its turn in time fails, and the log says so.
func TestAnAnnouncementWithoutATurnIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		k := newAbsences(&lead.Term{Log: slog.New(slog.NewTextHandler(&log, nil)), Metrics: lead.NewMetrics(prometheus.NewRegistry())}, nil)
		wait := func() error { return k.wait(t.Context(), clock.System{}, time.Now().Add(10*time.Second)) }
		require.NoError(t, wait())
		require.Empty(t, log.String())
		require.Equal(t, moraine.Unavailable, moraine.KindOf(wait()))
		require.Contains(t, log.String(), `msg="resource wait exceeded" resource="turn to check the absence of a host" waited=10s`)
		<-k.turn
		require.NoError(t, wait())
	})
}
