package agent_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/agent"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

// TestTheRateOfTheFlushIsBounded: the bytes that a rate does not allow yet wait, and a push lets them
// go at once.
func TestTheRateOfTheFlushIsBounded(t *testing.T) {
	n := newNode(t, 128<<20)
	n.config.FlushRate = 1 << 10 // what is past the first burst would take hours
	n.metrics = agent.NewMetrics(nil)
	n.start(0)
	p := n.peer(runPath, "one", 1)
	const bytes = 18 << 20
	require.NoError(t, p.begin(1, bytes))
	require.NoError(t, p.seal(1, bytes))
	n.eventually(func() bool { return n.written(1) > 0 })
	n.never(func() bool { return n.written(1) > 16<<20 })
	require.Zero(t, count(t, n.metrics.PacedSeconds))
	reply, err := agentproto.Ask(t.Context(), n.socket(), &agentproto.Request{Push: &agentproto.Push{DeadlineMillis: 300_000}})
	require.NoError(t, err)
	require.Empty(t, reply.Push.Parts)
	require.Positive(t, count(t, n.metrics.PacedSeconds))
	require.Greater(t, count(t, n.metrics.FlushedBytes), float64(bytes))

	require.NoError(t, p.begin(2, bytes))
	require.NoError(t, p.seal(2, bytes))
	n.eventually(func() bool { return n.written(2) > 0 })
	n.never(func() bool { return n.written(2) > 16<<20 }, "the push is over")
	require.ErrorIs(t, n.stop(), moraine.Incomplete) // without grace
}

// count returns the value of a counter.
func count(t *testing.T, c prometheus.Counter) float64 {
	t.Helper()
	var m dto.Metric
	require.NoError(t, c.Write(&m))
	return m.GetCounter().GetValue()
}
