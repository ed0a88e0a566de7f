package raftstore_test

import (
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/metadata/raftstore"
)

// The histogram shows how much of what was applied took longer than 100 ms: one of its edges, which
// increase, is there.
func TestApplySecondsHasAnEdgeAt100ms(t *testing.T) {
	reg := prometheus.NewRegistry()
	raftstore.NewMetrics(reg)
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() != "moraine_raft_apply_seconds" {
			continue
		}
		var edges []float64
		for _, b := range f.GetMetric()[0].GetHistogram().GetBucket() {
			edges = append(edges, b.GetUpperBound())
		}
		require.Contains(t, edges, 0.1)
		require.True(t, slices.IsSorted(edges))
		return
	}
	t.Fatal("there is no histogram")
}
