package leases_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/clock/clocktest"
)

// TestNoClockMakesAClientTrustItsLeasesForLonger: the clocks of disconnected
// clients jump, or their machines sleep. Their last answers from the cache come
// before the contradicting change is acknowledged.
func TestNoClockMakesAClientTrustItsLeasesForLonger(t *testing.T) {
	for _, row := range []struct {
		what string
		// do runs half a second after the last renewal. sleeps is for how long the
		// machine is suspended meanwhile: it does nothing, and measures nothing.
		do     func(*clocktest.Hands)
		sleeps time.Duration
		// answers is whether the cache must answer just after that.
		answers bool
	}{
		{"nothing", func(*clocktest.Hands) {}, 0, true},
		{"its hands go back a little", func(h *clocktest.Hands) { h.Set(-time.Second) }, 0, false},
		{"its hands go back an hour", func(h *clocktest.Hands) { h.Set(-time.Hour) }, 0, false},
		{"its hands go an hour ahead", func(h *clocktest.Hands) { h.Set(time.Hour) }, 0, false},
		{"it sleeps for a moment", func(*clocktest.Hands) {}, time.Second, false},
		{"it sleeps past its leases", func(*clocktest.Hands) {}, 5 * time.Second, false},
		{"it sleeps past its leases, its hands back an hour", func(h *clocktest.Hands) { h.Set(-time.Hour) }, 5 * time.Second, false},
		{"it sleeps past its leases, its hands back by nearly as much", func(h *clocktest.Hands) { h.Set(-4 * time.Second) }, 5 * time.Second, false},
	} {
		t.Run(row.what, func(t *testing.T) {
			hands := &clocktest.Hands{}
			inClusterWith(t, incluster.Options{Seed: 1, Chunkservers: 1, Clock: func(node string) clock.Clock {
				if node == "r" {
					return hands
				}
				return nil
			}}, func(ctx context.Context, c *incluster.Cluster) {
				w, r := open(t, ctx, c, "w", client.Config{}), open(t, ctx, c, "r", cached)
				defer w.Close()
				defer r.Close()
				_, err := w.MkdirAll(ctx, "d/e", 0)
				require.NoError(t, err)
				warm(t, ctx, r)
				_, err = r.Stat(ctx, "d/f")
				require.ErrorIs(t, err, moraine.NotFound)
				changed := cutAndChange(t, ctx, c, w)
				time.Sleep(500 * time.Millisecond)
				row.do(hands)
				time.Sleep(row.sleeps)
				hands.Slept(row.sleeps)

				first, last := answersOf(ctx, r, 5*time.Second)
				require.Equal(t, row.answers, first, "an answer from the cache right after that")
				if row.sleeps > 3*time.Second {
					require.Zero(t, last, "an answer from the cache after the sleep")
				}
				acknowledged := <-changed
				require.Less(t, last, acknowledged, "an answer from the cache after the change was acknowledged")
				c.Net.Rejoin("r", "*")
				_, err = r.Stat(ctx, "d/f")
				require.NoError(t, err)
				hits := r.Stats().CacheHits
				for range 300 { // and its leases are valid again
					time.Sleep(10 * time.Millisecond)
					_, err = r.Stat(ctx, "d/f")
					require.NoError(t, err)
				}
				require.Greater(t, r.Stats().CacheHits, hits)
			})
		})
	}
}

// cutAndChange disconnects r after its renewal and makes w create d/f. The channel
// gets the time of the acknowledgement, in nanoseconds of the bubble's clock.
func cutAndChange(t *testing.T, ctx context.Context, c *incluster.Cluster, w *incluster.Client) <-chan int64 {
	time.Sleep(1100 * time.Millisecond)
	c.Net.Isolate("r")
	changed := make(chan int64, 1)
	go func() {
		if _, err := w.Mkdir(ctx, "d/f", 0); err != nil {
			t.Error(err)
		}
		changed <- time.Now().UnixNano()
	}()
	synctest.Wait()
	return changed
}

// answersOf looks a name up repeatedly with a disconnected client. It returns
// whether its cache answered at first, and when it did last; 0 for never.
func answersOf(ctx context.Context, r *incluster.Client, length time.Duration) (first bool, last int64) {
	for i, began := 0, time.Now(); time.Since(began) < length; i++ {
		asked := time.Now().UnixNano()
		ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		_, err := r.Stat(ctx, "d/f")
		cancel()
		if moraine.KindOf(err) == moraine.NotFound {
			first, last = first || i == 0, asked
		}
		time.Sleep(10 * time.Millisecond)
	}
	return first, last
}
