package session

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/metrics"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// refuser answers for the metadata servers at some addresses, and refuses at the others.
type refuser struct {
	transport.Dialer
	good  map[string]bool
	asked []string
}

func (g *refuser) Metadata(addrs []string) transport.Metadata { return refuserAt{g, addrs[0]} }

type refuserAt struct {
	*refuser
	addr string
}

// Do implements transport.Metadata.
func (g refuserAt) Do(context.Context, *wire.MetaRequest) (*wire.MetaResponse, error) {
	g.refuser.asked = append(g.refuser.asked, g.addr)
	if !g.good[g.addr] {
		return nil, &moraine.Error{Op: "pki.Verify", Ref: g.addr, Kind: moraine.Unauthenticated, Err: errors.New("its certificate expired")}
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Done{Done: &wire.Done{}}}, nil
}

// TestAServerThatCannotProveItselfIsPassedOver: a metadata server with an expired certificate,
// or another cluster's, does not end a request while another one answers. If each refuses, the
// request ends at once, after one try of each.
func TestAServerThatCannotProveItselfIsPassedOver(t *testing.T) {
	for _, c := range []struct {
		good  map[string]bool
		asked []string
		ok    bool
	}{
		{map[string]bool{"c:1": true}, []string{"a:1", "b:1", "c:1"}, true},
		{map[string]bool{"a:1": true}, []string{"a:1"}, true},
		{nil, []string{"a:1", "b:1", "c:1"}, false},
	} {
		g := &refuser{good: c.good}
		m := New(Config{Metadata: [][]string{{"a:1"}, {"b:1"}, {"c:1"}}, AttemptTimeout: 5 * time.Second, Patience: 2 * time.Minute},
			Deps{Dialer: g, Clock: clock.System{}, Log: slog.New(slog.DiscardHandler), Metrics: metrics.NewMetrics(nil), Random: rand.Reader})
		_, unknown, err := m.exchange(t.Context(), &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}}, nil, 0)
		require.Equal(t, c.ok, err == nil, "%v", err)
		require.False(t, unknown, "nobody has begun it")
		require.Equal(t, c.asked, g.asked)
		if !c.ok {
			require.ErrorIs(t, err, moraine.Unauthenticated)
		}
	}
}
