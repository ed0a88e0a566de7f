package stripeio

import (
	"bytes"
	"context"
	"crypto/rand"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/metrics"
	"github.com/morainefs/moraine/client/internal/session"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/limit"
	"github.com/morainefs/moraine/transport"
)

// nobody is a network without servers.
type nobody struct{ transport.Dialer }

func (nobody) Metadata([]string) transport.Metadata { return nil }

// While another call has a turn, or fetches a grant, a call without a deadline ends with the
// client's patience, with a log line. It fails, except for the renewal of a capability: the old
// one serves.
func TestTurnsAreNotWaitedForBeyondThePatience(t *testing.T) {
	const patience = 30 * time.Second
	key := GrantKey{Scheme: moraine.Copies(3)}
	for resource, row := range map[string]struct {
		hold  func(*Engine)
		call  func(*Engine) error
		works bool
	}{
		"turn to read the topology": {hold: func(e *Engine) { require.True(t, e.Topology.refreshing.TryLock()) },
			call: func(e *Engine) error { _, err := e.Topology.find(context.Background(), 1); return err }},
		"turn to read the extents of a file": {call: func(e *Engine) error {
			m := NewExtentMap(e, 1, 1)
			require.True(t, m.loading.TryLock())
			_, err := m.Find(context.Background(), 0, 1)
			return err
		}},
		"stripe numbers of a grant": {hold: func(e *Engine) { e.Grants.queue(key).fetching = make(chan struct{}) },
			call: func(e *Engine) error { _, err := e.Grants.Take(context.Background(), key, 1); return err }},
		"turn to renew a capability": {works: true, call: func(e *Engine) error {
			g := &grant{capability: &heldCapability{renewing: NewTurn(&e.Limits.capability), bytes: []byte("old")}}
			require.True(t, g.capability.renewing.TryLock())
			require.Equal(t, "old", string(e.Grants.capability(context.Background(), g)))
			return nil
		}},
	} {
		t.Run(resource, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				reports := limit.NewReporter(slog.New(slog.NewTextHandler(&log, nil)), nil)
				quiet, m := slog.New(slog.DiscardHandler), metrics.NewMetrics(nil)
				meta := session.New(session.Config{Metadata: [][]string{{"a:1"}}, AttemptTimeout: time.Second, Patience: patience},
					session.Deps{Dialer: nobody{}, Clock: clock.System{}, Log: quiet, Metrics: m, Random: rand.Reader})
				e := NewEngine(Config{MemoryBytes: 64 << 20, StripesInFlight: 4, ChunkBytes: 1 << 20, Patience: patience, AttemptTimeout: time.Second,
					PutTimeout: time.Second, GetTimeout: time.Second, SlowFloor: time.Second, HedgeFloor: time.Second}, meta,
					Deps{Dialer: nobody{}, Clock: clock.System{}, Log: quiet, Metrics: m, Reports: reports})
				if row.hold != nil {
					row.hold(e)
				}
				ended := make(chan error, 1)
				go func() { ended <- row.call(e) }()
				select {
				case err := <-ended:
					require.Equal(t, row.works, err == nil, "%v", err)
					require.True(t, row.works || moraine.KindOf(err) == moraine.Timeout, "%v", err)
				case <-time.After(2 * patience):
					t.Fatalf("it has waited for %v with a patience of %v", 2*patience, patience)
				}
				require.Equal(t, 1, strings.Count(log.String(), resource), log.String())
			})
		})
	}
}
