package transport_test

import (
	"context"
	"crypto/ed25519"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/transport"
)

// gate delays look-ups of a token's key, which a server makes for every presented
// token.
type gate struct {
	keys transport.Keys

	mu      sync.Mutex // guards the fields below
	next    bool       // delay the next look-up
	unknown bool       // no key is known
	held    chan struct{}
	open    chan struct{}
}

func (g *gate) find(id uint64) ed25519.PublicKey {
	g.mu.Lock()
	held, unknown := g.next, g.unknown
	g.next = false
	g.mu.Unlock()
	if held {
		close(g.held)
		<-g.open
	}
	if unknown {
		return nil
	}
	return g.keys(id)
}

// set applies change before the next look-up.
func (g *gate) set(change func(g *gate)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change(g)
}

func (g *gate) holdNext() {
	g.set(func(g *gate) { g.next, g.held, g.open = true, make(chan struct{}), make(chan struct{}) })
}

// gated is a chunkserver behind a gate, and a client of it whose first token is
// valid for first. expires is that of the token of the last put.
func gated(t *testing.T, first time.Duration) (g *gate, a *authority, expires *atomic.Int64, p *transport.Pool, c transport.Chunks, reg *prometheus.Registry) {
	n := network{mode: transport.Insecure}
	a, expires = newAuthority(t), new(atomic.Int64)
	sh := newShelf()
	sh.before = func(ctx context.Context) error {
		expires.Store(transport.PeerFrom(ctx).Token.Expires)
		return nil
	}
	g = &gate{keys: a.keys}
	reg = prometheus.NewRegistry()
	s, _ := startServer(t, transport.ServerConfig{Addresses: []string{n.address(t)}, Mode: n.mode, Cluster: cluster, Role: transport.RoleChunkserver, Node: "n1"},
		transport.ServerDeps{Handler: transport.HandlerForChunks(sh), Keys: g.find, Metrics: transport.NewMetrics(reg)})
	p, err := transport.NewPool(transport.PoolConfig{Mode: n.mode, Cluster: cluster, Role: transport.RoleClient, Node: "c1", BulkConnections: 1},
		transport.PoolDeps{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	p.SetToken(a.token(t, "c1", first))
	return g, a, expires, p, p.Chunks("n1", s.Addresses()), reg
}

// If a token is replaced while a connection is being made with it, the connection
// is made again with the new one. The caller does not see the refusal of the old
// token.
func TestTokenReplacedWhileDialling(t *testing.T) {
	g, a, _, p, c, _ := gated(t, -time.Second)
	g.holdNext()
	done := make(chan error, 1)
	go func() { _, err := put(testContext(t), c, 1, []byte("x")); done <- err }()
	<-g.held
	p.SetToken(a.token(t, "c1", time.Hour))
	close(g.open)
	require.NoError(t, <-done)
}

// If two tokens are set in quick succession, the newer one stays, however long the
// server took over the first.
func TestTokensAreShownInTheirOrder(t *testing.T) {
	g, a, expires, p, c, reg := gated(t, time.Hour)
	ctx := testContext(t)
	_, err := put(ctx, c, 1, []byte("x"))
	require.NoError(t, err)
	g.holdNext()
	p.SetToken(a.token(t, "c1", 2*time.Hour))
	<-g.held
	after := time.Now().Add(2*time.Hour + time.Minute).Unix()
	p.SetToken(a.token(t, "c1", 3*time.Hour))
	for range 3 { // what was sent beside the delayed refresh has arrived
		_, err = put(ctx, c, 1, []byte("x"))
		require.NoError(t, err)
	}
	close(g.open)
	require.Eventually(t, func() bool { return refreshes(t, reg) == 2 }, 20*time.Second, time.Millisecond)
	_, err = put(ctx, c, 1, []byte("x"))
	require.NoError(t, err)
	require.Greater(t, expires.Load(), after, "the server has the newer token")
}

// A token is presented again to a server that does not know its key yet.
func TestTokenOfAKeyNotKnownYetIsShownAgain(t *testing.T) {
	g, a, expires, p, c, _ := gated(t, time.Hour)
	ctx := testContext(t)
	_, err := put(ctx, c, 1, []byte("x"))
	require.NoError(t, err)
	g.set(func(g *gate) { g.unknown = true })
	g.holdNext()
	after := time.Now().Add(time.Hour + time.Minute).Unix()
	p.SetToken(a.token(t, "c1", 3*time.Hour))
	<-g.held
	close(g.open) // refused: the key is unknown
	_, err = put(ctx, c, 1, []byte("x"))
	require.NoError(t, err, "the former token is good still")
	g.set(func(g *gate) { g.unknown = false })
	require.Eventually(t, func() bool {
		_, err := put(ctx, c, 1, []byte("x"))
		return err == nil && expires.Load() > after
	}, 20*time.Second, time.Millisecond)
}

// refreshes is how many tokens the server was shown on open connections.
func refreshes(t *testing.T, reg *prometheus.Registry) (n float64) {
	all, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range all {
		if f.GetName() != "moraine_transport_requests_total" {
			continue
		}
		for _, m := range f.Metric {
			labels := map[string]string{}
			for _, l := range m.Label {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["side"] == "server" && labels["kind"] == "refresh_token" {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}
