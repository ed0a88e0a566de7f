package mover_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/mover"
)

// pacer grants bytes at a rate, one caller after the other, and counts them.
type pacer struct {
	perSecond int64 // 0: at once
	asked     atomic.Int64
	inside    atomic.Int32
	together  atomic.Bool // two callers asked at the same time
}

func (p *pacer) pace(ctx context.Context, n int64) error {
	if p.inside.Add(1) > 1 {
		p.together.Store(true)
	}
	defer p.inside.Add(-1)
	p.asked.Add(n)
	if p.perSecond > 0 {
		time.Sleep(time.Duration(n) * time.Second / time.Duration(p.perSecond))
	}
	return ctx.Err()
}

// A flush calls Pace for each byte before it reads or sends it.
func TestFlushKeepsItsPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, filled(96<<20, 1))
		p := &pacer{perSecond: 10 << 20}
		l.pace = p.pace
		var parts atomic.Int64
		l.bucket.SetHook(func(_ context.Context, op, _ string) (func(error) error, error) {
			if op == "put_part" {
				sent := parts.Add(1) * 16 << 20
				require.GreaterOrEqual(t, p.asked.Load(), 2*sent, "what was got and sent before and with this part")
			}
			return nil, nil
		})
		l.queue(flushKind)
		began := time.Now()
		defer l.start("n1")()
		l.waitIdle(t)
		l.requireFlushed(t)
		require.EqualValues(t, 192<<20, p.asked.Load())
		require.GreaterOrEqual(t, time.Since(began), 19*time.Second, "192 MiB at 10 MiB a second")
		require.False(t, p.together.Load(), "one piece of work asks after the other")
	})
}

// A repair calls Pace for what it reads, from as many devices as it needs, and for what it
// puts.
func TestRepairKeepsItsPace(t *testing.T) {
	inCluster(t, repairing, func(t *testing.T, c *memcluster.Cluster) {
		p := &pacer{}
		cl := c.Mover("n1")
		metrics := mover.NewMetrics(nil)
		m, err := mover.New(mover.Config{}, mover.Deps{Client: cl, Pace: p.pace, Metrics: metrics})
		require.NoError(t, err)
		c.Run(func(ctx context.Context) error {
			defer cl.Close()
			return m.Run(ctx)
		})
		save(t, c, "/runs/a", 1, 5, 2)
		before := p.asked.Load()
		loseHosts(t, c, 6, 7)
		soundAgain(t, c)
		rebuilt := int64(counted(t, metrics.BytesRepaired))
		require.Positive(t, rebuilt)
		require.GreaterOrEqual(t, p.asked.Load()-before, 2*rebuilt, "each chunk is put, and at least as much is got for it")
		require.False(t, p.together.Load())
	})
}

func counted(t *testing.T, c prometheus.Counter) float64 {
	t.Helper()
	var m dto.Metric
	require.NoError(t, c.Write(&m))
	return m.GetCounter().GetValue()
}
