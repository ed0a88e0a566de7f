package metadata_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/clock/clocktest"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// TestLeasesGoByNoWallClock moves the leader's wall clock back and forth and suspends its machine
// while a session has a lease. The lease lasts at least its term in real time, and not longer if
// the leader's clocks kept running.
func TestLeasesGoByNoWallClock(t *testing.T) {
	const term = 3 * time.Second
	for _, row := range []struct {
		what string
		do   func(*clocktest.Hands)
		ends time.Duration // after the holder's last renewal, in real time
	}{
		{"nothing", func(*clocktest.Hands) {}, term},
		{"an hour ahead", func(h *clocktest.Hands) { h.Set(time.Hour) }, term},
		{"an hour back", func(h *clocktest.Hands) { h.Set(-time.Hour) }, term},
		{"back and forth", func(h *clocktest.Hands) { h.Set(-time.Hour); h.Set(time.Hour) }, term},
		{"the machine slept", func(h *clocktest.Hands) { h.Slept(time.Second) }, term + time.Second},
		{"it slept, and its hands were set", func(h *clocktest.Hands) { h.Slept(time.Second); h.Set(time.Hour) }, term + time.Second},
	} {
		t.Run(row.what, func(t *testing.T) {
			hands := &clocktest.Hands{}
			bubbleWith(t, func(_ *metadata.Config, deps *metadata.Deps) { deps.Clock = hands }, func(c *cluster) {
				writer := c.open(peer(transport.RoleClient, "w"))
				dir := writer.made(mkdir(root, "d")).Inode
				h := c.cacher("h")
				h.walk("d/f")
				created := writer.later(create(dir, "f"))
				requireWaits(t, created, "a change of what is leased")
				time.Sleep(500 * time.Millisecond)
				row.do(hands)
				requireWaits(t, created, "a change after that")
				time.Sleep(row.ends - 600*time.Millisecond)
				requireWaits(t, created, "a change just before the term is over")
				// A waiting request wakes when the term should have ended, and again.
				time.Sleep(200*time.Millisecond + row.ends - term)
				requireAnswered(t, created, "a change past the term")
				require.True(t, h.leases(&wire.Leases{Renew: true}).Ended)
			})
		})
	}
}

// TestRenewalsGoByNoWallClock: a holder that renews keeps its leases and one that does not loses
// them, whatever the leader's wall clock shows.
func TestRenewalsGoByNoWallClock(t *testing.T) {
	hands := &clocktest.Hands{}
	bubbleWith(t, func(_ *metadata.Config, deps *metadata.Deps) { deps.Clock = hands }, func(c *cluster) {
		writer := c.open(peer(transport.RoleClient, "w"))
		dir := writer.made(mkdir(root, "d")).Inode
		h := c.cacher("h")
		h.walk("d/f")
		for i, ahead := range []time.Duration{time.Hour, -time.Hour, 24 * time.Hour, 0, -time.Minute, 2 * time.Second} {
			hands.Set(ahead)
			time.Sleep(time.Second)
			require.True(t, h.leases(&wire.Leases{Renew: true}).Renewed, "renewal %d, hands at %v", i, ahead)
		}
		created := writer.later(create(dir, "f"))
		requireWaits(t, created, "a change of what is still leased")
		h.recalled(1)
		requireAnswered(t, created, "the change")
		require.NoError(t, writer.renew(), "nor do sessions end for it")
	})
}

// TestALeaseOutlivesNoSession: every session that may trust a lease is known to the state, so that
// a new leader knows for whom to wait. This also holds for a session timeout below the lease term,
// and if only the leases are renewed.
func TestALeaseOutlivesNoSession(t *testing.T) {
	short := func(cfg *metadata.Config) { cfg.SessionTimeout = 2 * time.Second }
	bubble(t, short, func(c *cluster) {
		writer := c.open(peer(transport.RoleClient, "w"))
		dir := writer.made(mkdir(root, "d")).Inode
		h := c.cacher("h")
		var term time.Duration
		for range 4 {
			h.walk("d/f")
			time.Sleep(time.Second)
			require.NoError(t, writer.renew())
			r := h.leases(&wire.Leases{Renew: true})
			require.True(t, r.Renewed, "who renews its leases keeps its session")
			term = time.Duration(r.TermMillis) * time.Millisecond
		}
		require.LessOrEqual(t, term, 2*time.Second)
		// It becomes silent. The leader dies as soon as the session has ended.
		renewed := time.Now()
		for live := 2; live == 2; _, live = c.sessionsOf() {
			time.Sleep(100 * time.Millisecond)
			require.NoError(t, writer.renew())
			synctest.Wait()
		}
		c.elect("m2")
		created := writer.later(create(dir, "f"))
		requireAnswered(t, created, "a change when nobody holds anything")
		require.Greater(t, time.Since(renewed), term*3/4, "the holder trusts its leases until then")
	})
}
