package client_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/transport"
)

// stored is how many bytes of chunks the hosts have.
func stored(c *cluster) (n int64) {
	for _, h := range c.Hosts {
		n += h.Bytes()
	}
	return n
}

// watchRate checks every 10 ms, until the returned function is called, that no more bytes moved
// than a rate allows. The clock is that of the test.
func watchRate(t *testing.T, rate int64, moved func() int64) (end func()) {
	began, before := time.Now(), moved()
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			allowed := float64(rate)*(time.Since(began).Seconds()+0.1) + 1 // a burst of 0.1 s
			if n := moved() - before; float64(n) > allowed {
				t.Errorf("%d bytes moved in %v, and the rate allows %.0f", n, time.Since(began), allowed)
				return
			}
			select {
			case <-over:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	return func() { close(over); <-done }
}

// TestTheBandwidthOfAClientIsBounded: chunks move at most at the rates of the client, with their
// parity and what is fetched ahead, by several readers and writers at once, also while a host is
// down and reads rebuild. What the node's cache answers moves nothing. No device counts as slow.
func TestTheBandwidthOfAClientIsBounded(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cfg := config()
		cfg.CacheDir, cfg.CacheBytes = t.TempDir(), 1<<30
		cfg.ReadBytesPerSecond, cfg.WriteBytesPerSecond = 2<<20, 1<<20
		metrics := client.NewMetrics(nil)
		d := c.Net.Dialer(memcluster.Peer(transport.RoleClient, "c1"))
		defer d.Close()
		cl, err := client.Dial(c.ctx, cfg, client.Deps{Dialer: d, Log: c.Log, Metrics: metrics})
		require.NoError(t, err)
		defer cl.Close()
		data := [][]byte{bytesOf(1, 3<<20), bytesOf(2, 3<<20)}
		paths := []string{"/a", "/b"}

		end, began := watchRate(t, cfg.WriteBytesPerSecond, func() int64 { return stored(c) }), time.Now()
		both(func(i int) { write(t, c, cl, paths[i], data[i], 100_000, false) })
		end()
		require.Greater(t, stored(c), int64(6<<20), "parity counts")
		require.Less(t, time.Since(began), 2*time.Duration(stored(c)/cfg.WriteBytesPerSecond)*time.Second)

		c.Hosts[0].Kill()
		end = watchRate(t, cfg.ReadBytesPerSecond, func() int64 { return gotten(c) })
		both(func(i int) {
			got, err := readWhole(c, cl, paths[i])
			require.NoError(t, err)
			require.Equal(t, sum(data[i]), sum(got))
		})
		end()
		require.GreaterOrEqual(t, gotten(c), int64(6<<20))
		require.Positive(t, client.BandwidthSeconds(metrics, "read"))
		require.Positive(t, client.BandwidthSeconds(metrics, "write"))
		require.Zero(t, cl.Stats().ChunksReplaced)

		synctest.Wait() // the node's cache has the bytes
		before, waited := gotten(c), client.BandwidthSeconds(metrics, "read")
		_, err = readWhole(c, cl, "/a")
		require.NoError(t, err)
		require.Equal(t, before, gotten(c))
		require.InDelta(t, waited, client.BandwidthSeconds(metrics, "read"), 0)
	})
}

// both calls do for 0 and 1 at once.
func both(do func(i int)) {
	var all sync.WaitGroup
	for i := range 2 {
		all.Go(func() { do(i) })
	}
	all.Wait()
}

// TestABandwidthThatIsTooLowIsRefused: at less, a call could wait longer than the patience for what
// is in the client's memory and its redundancy.
func TestABandwidthThatIsTooLowIsRefused(t *testing.T) {
	inCluster(t, 1, func(c *cluster) {
		for _, rate := range []int64{-1, 1, 100 << 10, 1<<20 - 1} {
			cfg := config()
			cfg.WriteBytesPerSecond = rate
			_, err := client.Dial(c.ctx, cfg, client.Deps{})
			require.Equal(t, moraine.InvalidArgument, moraine.KindOf(err))
			require.ErrorContains(t, err, "at least 1048576")
		}
		cfg := config()
		cfg.MemoryBytes, cfg.Patience, cfg.ReadBytesPerSecond = 1<<30, 4*time.Minute, 12<<20
		_, err := client.Dial(c.ctx, cfg, client.Deps{})
		require.ErrorContains(t, err, "at least 13421772", "three times the memory")
	})
}
