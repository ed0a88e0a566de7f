package transport_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/morainefs/moraine/transport/wire"
)

// calendar is a clock whose date can be set forward. Its durations are those of the
// machine.
type calendar struct {
	clock.System
	ahead atomic.Int64
}

func (c *calendar) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

func (c *calendar) Since(t time.Time) time.Duration { return time.Since(t) }

// endings is a metadata server m1 and a chunkserver n1 with blocked calls, and a
// stream of the log.
type endings struct {
	held    chan struct{} // gets one for each blocked call
	results chan error    // of the calls
	log     chan error    // how the stream ended
}

func holdAt(held chan struct{}) func(context.Context) error {
	return func(ctx context.Context) error {
		held <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
}

// hold opens a connection of each class between servers and callers with the given
// clocks, and blocks a call on each. Their certificates have the given terms.
func hold(t *testing.T, n network, a *authority, servers, callers clock.Clock, serverTTL, callerTTL time.Duration, revoked func(*transport.Peer) bool) *endings {
	e := &endings{held: make(chan struct{}, 2), results: make(chan error, 2), log: make(chan error, 1)}
	issue := func(role transport.Role, node string, ttl time.Duration) *pki.Identity {
		return a.issue(t, pki.Request{Role: role, Node: node, Now: time.Now(), TTL: ttl})
	}
	sh := newShelf()
	sh.before = holdAt(e.held)
	serve := func(role transport.Role, node string, h transport.Handler) *transport.Server {
		s, _ := startServer(t, transport.ServerConfig{Addresses: []string{"127.0.0.1:0"}, Mode: n.mode, Cluster: cluster, Role: role, Node: node},
			transport.ServerDeps{Handler: h, Identity: issue(role, node, serverTTL), Keys: a.keys, Clock: servers, Revoked: revoked})
		return s
	}
	pool := func(role transport.Role, node string) *transport.Pool {
		p, err := transport.NewPool(transport.PoolConfig{Mode: n.mode, Cluster: cluster}, transport.PoolDeps{Identity: issue(role, node, callerTTL), Clock: callers})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, p.Close()) })
		return p
	}
	m := serve(transport.RoleMetadata, "m1", transport.HandlerForMetadata(clerk(func(ctx context.Context, _ *wire.MetaRequest) (*wire.MetaResponse, error) {
		return nil, holdAt(e.held)(ctx)
	})))
	s := serve(transport.RoleChunkserver, "n1", transport.HandlerForChunks(sh))
	c := pool(transport.RoleClient, "c1")
	c.SetToken(a.token(t, "c1", 24*time.Hour))
	ctx := testContext(t)
	go func() {
		_, err := c.Metadata(m.Addresses()).Do(ctx, &wire.MetaRequest{})
		e.results <- err
	}()
	go func() {
		_, err := put(ctx, c.Chunks("n1", s.Addresses()), 1, []byte("x"))
		e.results <- err
	}()
	<-e.held
	<-e.held
	nc, err := pool(transport.RoleMetadata, "m2").DialRaft(m.Addresses()[0], 0)
	require.NoError(t, err)
	t.Cleanup(func() { nc.Close() })
	got, err := m.RaftListener().Accept()
	require.NoError(t, err)
	t.Cleanup(func() { got.Close() })
	go func() {
		_, err := nc.Read(make([]byte, 1))
		e.log <- err
	}()
	return e
}

// ended waits until every connection has ended.
func (e *endings) ended(t *testing.T, what string) {
	t.Helper()
	for range 2 {
		select {
		case err := <-e.results:
			require.Error(t, err, what)
		case <-time.After(30 * time.Second):
			t.Fatalf("%s: a connection that carries a call is still open", what)
		}
	}
	select {
	case err := <-e.log:
		require.Error(t, err, what)
	case <-time.After(30 * time.Second):
		t.Fatalf("%s: the stream of the log is still open", what)
	}
}

// TestConnectionsEndWithTheirCertificates: a connection of any class ends when its
// caller's certificate does, by the clock of the server.
func TestConnectionsEndWithTheirCertificates(t *testing.T) {
	for _, mode := range []transport.Mode{transport.Secure, transport.CRC} {
		t.Run(string(mode), func(t *testing.T) {
			a, late := newAuthority(t), &calendar{}
			e := hold(t, network{mode: mode}, a, late, nil, 12*time.Hour, time.Hour, nil)
			late.ahead.Store(int64(2 * time.Hour))
			e.ended(t, "an expired caller")
		})
	}
}

// TestCallersLeaveServersWhoseCertificateEnded: the caller ends it too.
func TestCallersLeaveServersWhoseCertificateEnded(t *testing.T) {
	for _, mode := range []transport.Mode{transport.Secure, transport.CRC} {
		t.Run(string(mode), func(t *testing.T) {
			a, late := newAuthority(t), &calendar{}
			n := network{mode: mode}
			sh, held := newShelf(), make(chan struct{}, 1)
			sh.before = holdAt(held)
			s, _ := startServer(t, transport.ServerConfig{Addresses: []string{"127.0.0.1:0"}, Mode: n.mode, Cluster: cluster, Role: transport.RoleChunkserver, Node: "n1"},
				transport.ServerDeps{Handler: transport.HandlerForChunks(sh), Identity: a.issue(t, pki.Request{Role: transport.RoleChunkserver, Node: "n1", Now: time.Now(), TTL: time.Hour}), Keys: a.keys})
			p, err := transport.NewPool(transport.PoolConfig{Mode: n.mode, Cluster: cluster}, transport.PoolDeps{Identity: a.identity(t, transport.RoleClient, "c1"), Clock: late})
			require.NoError(t, err)
			defer p.Close()
			p.SetToken(a.token(t, "c1", time.Hour))
			result := make(chan error, 1)
			go func() {
				_, err := put(testContext(t), p.Chunks("n1", s.Addresses()), 1, []byte("x"))
				result <- err
			}()
			<-held
			late.ahead.Store(int64(2 * time.Hour))
			select {
			case err := <-result:
				require.ErrorContains(t, err, "certificate of the connection expired")
			case <-time.After(30 * time.Second):
				t.Fatal("the connection is still open")
			}
		})
	}
}

// TestConnectionsEndWhenTheirKeyIsRevoked: connections with a revoked key end, in
// every class, and no new ones open. Others stay.
func TestConnectionsEndWhenTheirKeyIsRevoked(t *testing.T) {
	for _, mode := range []transport.Mode{transport.Secure, transport.CRC} {
		t.Run(string(mode), func(t *testing.T) {
			a := newAuthority(t)
			var on atomic.Bool
			revoked := func(p *transport.Peer) bool {
				return on.Load() && (p.Node == "c1" || p.Node == "m2") && p.Serial != "" && !p.Key.IsZero() && !p.Issued.IsZero()
			}
			n := network{mode: mode}
			s, _ := startServer(t, transport.ServerConfig{Addresses: []string{"127.0.0.1:0"}, Mode: n.mode, Cluster: cluster, Role: transport.RoleMetadata, Node: "m3"},
				transport.ServerDeps{Handler: transport.HandlerForMetadata(clerk(answer)), Identity: a.identity(t, transport.RoleMetadata, "m3"), Revoked: revoked})
			x := newProxy(t, s.Addresses()[0])
			other := n.pool(t, a, transport.RoleClient, "c2").Metadata([]string{x.addr()})
			_, err := other.Do(testContext(t), &wire.MetaRequest{})
			require.NoError(t, err)

			e := hold(t, n, a, nil, nil, 12*time.Hour, 12*time.Hour, revoked)
			on.Store(true)
			e.ended(t, "a revoked caller")

			_, err = n.pool(t, a, transport.RoleClient, "c1").Metadata(s.Addresses()).Do(testContext(t), &wire.MetaRequest{})
			require.ErrorIs(t, err, moraine.Unauthenticated)
			require.ErrorContains(t, err, "was revoked")
			_, err = other.Do(testContext(t), &wire.MetaRequest{})
			require.NoError(t, err)
			require.Equal(t, 1, x.count(), "the connection of another key stayed")
		})
	}
}
