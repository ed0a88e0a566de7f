package intruder_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/morainefs/moraine/transport/wire"
)

// behind is the clock of a caller that considers its expired certificate valid.
type behind struct{ clock.System }

func (behind) Now() time.Time { return time.Now().Add(-time.Hour) }

// reached is a service that counts the requests that reach it.
type reached struct {
	calls atomic.Int64
}

// Serve implements transport.Handler.
func (r *reached) Serve(_ context.Context, req *transport.Request) (*transport.Response, error) {
	r.calls.Add(1)
	if req.Payload != nil {
		_ = req.Payload.Discard()
	}
	return nil, &moraine.Error{Kind: moraine.Exists}
}

// TestIntruderWithABadCertificate: under a certificate that has expired, is of
// another cluster or authority, or was revoked, no request of any server reaches a
// handler, in both modes. Under a good one each does.
func TestIntruderWithABadCertificate(t *testing.T) {
	cluster := moraine.UUID{1}
	now := time.Now()
	newCA := func(of moraine.UUID) *pki.CA {
		ca, err := pki.NewCA(of, now.Add(-48*time.Hour), 240*time.Hour)
		require.NoError(t, err)
		return ca
	}
	ca, forged, foreign := newCA(cluster), newCA(cluster), newCA(moraine.UUID{2})
	identity := func(from *pki.CA, role transport.Role, node string, at time.Time, ttl time.Duration) *pki.Identity {
		dir := t.TempDir()
		c, err := from.Issue(pki.Request{Role: role, Node: node, Now: at, TTL: ttl})
		require.NoError(t, err)
		require.NoError(t, c.Save(dir, node))
		id, err := pki.LoadIdentity(pki.FilesIn(dir, node))
		require.NoError(t, err)
		return id
	}
	callers := map[string]*pki.Identity{
		"good":                 identity(ca, transport.RoleChunkserver, "good", now, 10*time.Hour),
		"expired":              identity(ca, transport.RoleChunkserver, "expired", now.Add(-10*time.Hour), 9*time.Hour+30*time.Minute),
		"of another authority": identity(forged, transport.RoleChunkserver, "forged", now, 10*time.Hour),
		"of another cluster":   identity(foreign, transport.RoleChunkserver, "foreign", now, 10*time.Hour),
		"revoked":              identity(ca, transport.RoleChunkserver, "revoked", now, 10*time.Hour),
	}
	for _, mode := range []transport.Mode{transport.Secure, transport.CRC} {
		for _, role := range []transport.Role{transport.RoleMetadata, transport.RoleChunkserver} {
			handler := &reached{}
			server, err := transport.NewServer(transport.ServerConfig{Addresses: []string{"127.0.0.1:0"}, Mode: mode, Cluster: cluster, Role: role, Node: "server"},
				transport.ServerDeps{Handler: handler, Identity: identity(ca, role, "server", now, 10*time.Hour),
					Revoked: func(p *transport.Peer) bool { return p.Node == "revoked" }})
			require.NoError(t, err)
			ctx, stop := context.WithCancel(t.Context())
			var g errgroup.Group
			g.Go(func() error { return server.Run(ctx) })
			<-server.Ready()
			for name, id := range callers {
				handler.calls.Store(0)
				pool, err := transport.NewPool(transport.PoolConfig{Mode: mode}, transport.PoolDeps{Identity: id, Clock: callersClock(name)})
				require.NoError(t, err)
				sent := sendAll(ctx, pool, role, server.Addresses(), func(what string, err error) {
					require.Error(t, err, "%s %s %s", mode, name, what)
					require.Equal(t, name == "good", kind(err) == "already exists", "%s %s %s: %v", mode, name, what, err)
				})
				require.NoError(t, pool.Close())
				if name == "good" {
					require.EqualValues(t, sent, handler.calls.Load())
				} else {
					require.Zero(t, handler.calls.Load(), "%s %s", mode, name)
				}
			}
			stop()
			_ = g.Wait()
		}
	}
}

func callersClock(name string) clock.Clock {
	if name == "expired" {
		return behind{}
	}
	return nil
}

// sendAll sends every request of a server of a role, and returns their number.
func sendAll(ctx context.Context, pool *transport.Pool, role transport.Role, addrs []string, check func(what string, err error)) (sent int) {
	if role == transport.RoleMetadata {
		meta, fields := pool.Metadata(addrs), ops()
		for n := range fields.Len() {
			req := &wire.MetaRequest{}
			req.ProtoReflect().Mutable(fields.Get(n))
			_, err := meta.Do(ctx, req)
			check(string(fields.Get(n).Name()), err)
			sent++
		}
		return sent
	}
	for name, row := range chunkRows {
		_, err := row.do(ctx, pool.Chunks("server", addrs), refs{stripe: 1, object: 1, file: 1}, 1, 0, nil)
		check(name, err)
		sent++
	}
	return sent
}
