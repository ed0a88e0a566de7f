package ckpt_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/transport/wire"
)

// TestNumbersOfASaveAreBounded: a seal timeout or a length that is negative or past its bound ends no step: Begin
// fails before anything is sent, and the next save works.
func TestNumbersOfASaveAreBounded(t *testing.T) {
	inCluster(t, memcluster.Options{}, func(t *testing.T, c *memcluster.Cluster) {
		tr := team(t, c, "one", 1)[0]
		const week = wire.MaxSealTimeoutMillis * time.Millisecond
		for _, o := range []ckpt.BeginOptions{{SealTimeout: -1}, {SealTimeout: time.Microsecond}, {SealTimeout: week + time.Millisecond},
			{SealTimeout: math.MaxInt64}, {SealTimeout: math.MinInt64}, {Bytes: -1}, {Bytes: math.MinInt64}, {Bytes: math.MaxInt64}, {Bytes: 1<<50 + 1}} {
			_, err := tr.run.Begin(t.Context(), 1, o)
			require.ErrorIs(t, err, moraine.InvalidArgument, "%+v", o)
		}
		save := tr.begin(2, 1, ckpt.BeginOptions{SealTimeout: week})
		require.NoError(t, save.Seal(t.Context()))
		_, err := save.Wait(t.Context(), moraine.NVMe)
		require.NoError(t, err)
	})
}
