package transport_test

import (
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/transport"
)

// TestTrafficIsCountedOnce: bytes that two callers report concurrently, or in the
// wrong order, are counted once. The end of a connection overtakes its check.
func TestTrafficIsCountedOnce(t *testing.T) {
	reg := prometheus.NewRegistry()
	report := transport.ReportTraffic(transport.NewMetrics(reg))
	var both sync.WaitGroup
	for who := range uint64(2) {
		both.Go(func() {
			for n := range uint64(1000) {
				report(10*n + who)
			}
		})
	}
	both.Wait()
	report(20_000)
	report(7) // it read the count before the end
	all, err := reg.Gather()
	require.NoError(t, err)
	seen := 0
	for _, f := range all {
		for _, m := range f.Metric {
			if v := m.GetCounter().GetValue(); v != 0 {
				require.EqualValues(t, 20_000, v, f.GetName())
				seen++
			}
		}
	}
	require.Equal(t, 2, seen, "sent and received")
}
