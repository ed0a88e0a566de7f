package chunkserver_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/chunkserver"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// A request that the limits of a chunkserver delay past its deadline fails with
// Timeout, a count and a log line. A request that its caller cancels is not
// reported. The same holds for requests of other chunkservers, which wait at the
// floor and the share too.
func TestWaitsAtALimitAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		metrics := chunkserver.NewMetrics(nil)
		n, err := chunkserver.NewNeighbour(&timedService{}, chunkserver.Limits{BytesPerSecond: 1 << 20},
			chunkserver.NeighbourDeps{Metrics: metrics, Log: slog.New(slog.NewTextHandler(&log, nil))})
		require.NoError(t, err)
		get := func(ctx context.Context) error {
			_, _, _, err := n.GetChunk(ctx, &wire.GetChunk{Length: moraine.MaxChunkSize})
			return err
		}
		require.NoError(t, get(t.Context())) // the saved-up budget is used up
		mover := transport.WithPeer(t.Context(), &transport.Peer{Role: transport.RoleChunkserver, Node: "n2"})
		for _, parent := range []context.Context{t.Context(), mover} {
			ctx, stop := context.WithTimeout(parent, time.Second)
			require.Equal(t, moraine.Timeout, moraine.KindOf(get(ctx)))
			stop()
		}
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, stop)
		require.Equal(t, moraine.Canceled, moraine.KindOf(get(ctx)))
		require.Equal(t, 1, strings.Count(log.String(), "resource wait exceeded"), log.String()) // one in ten seconds
		var m dto.Metric
		require.NoError(t, metrics.WaitsExceeded.WithLabelValues("bandwidth and processor time of the chunkserver").Write(&m))
		require.Equal(t, 2.0, m.GetCounter().GetValue())
	})
}
