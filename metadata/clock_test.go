package metadata_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/metadatatest"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// jumping is a clock that a test moves forward, like the clock of a process that was stopped for a
// while.
type jumping struct {
	clock.System
	ahead *atomic.Int64
}

func (j jumping) Now() time.Time { return time.Now().Add(time.Duration(j.ahead.Load())) }

func TestATimeJumpExpiresNobody(t *testing.T) {
	var ahead atomic.Int64
	bubbleWith(t, func(_ *metadata.Config, deps *metadata.Deps) { deps.Clock = jumping{ahead: &ahead} }, func(c *cluster) {
		nodes := c.fleet(6)
		k := c.open(peer(transport.RoleClient, "c1"))
		clusterTime := func() uint64 {
			resp, err := c.do(k.peer, &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
			require.NoError(t, err)
			return resp.GetCluster().ClusterTimeMillis
		}
		c.pass(5*time.Second, nodes...)
		before := clusterTime()
		require.InDelta(t, 5000, before, 1001)
		ahead.Add(int64(time.Hour))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.LessOrEqual(t, clusterTime(), before+3000, "an hour of silence is no more than a second of cluster time")
		require.NoError(t, k.renew())
		for _, h := range c.topology().Hosts {
			require.True(t, h.Alive, h.Id)
		}
	})
}

// TestASlowTickHidesNoSilence: a tick that takes long, by a slow disk or by much work, is no stop of the
// process. A host that is silent meanwhile is found.
func TestASlowTickHidesNoSilence(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(6)
		c.pass(2*time.Second, nodes...)
		c.group.Fail(metadatatest.Faults{Slow: 3 * time.Second})
		var beats sync.WaitGroup
		for _, n := range nodes[:5] {
			beats.Go(func() {
				for range 20 { // each waits for a slow entry
					n.beat()
					time.Sleep(time.Second)
				}
			})
		}
		beats.Wait()
		synctest.Wait()
		c.group.Fail(metadatatest.Faults{})
		for _, h := range c.topology().Hosts {
			require.Equal(t, h.Id != "n6", h.Alive, h.Id)
		}
	})
}
