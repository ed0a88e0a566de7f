package transport_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// TestStrangersHoldNoPlaces has unauthenticated clients take every connection of a
// server repeatedly and stay silent. A real caller is still served, and keeps its
// connection.
func TestStrangersHoldNoPlaces(t *testing.T) {
	n := network{mode: transport.Secure}
	a := newAuthority(t)
	const places = 8
	var callers []string
	s, _ := startServer(t, transport.ServerConfig{Addresses: []string{n.address(t)}, Mode: n.mode, MaxConnections: places, HandshakeTimeout: time.Hour},
		transport.ServerDeps{Identity: a.identity(t, transport.RoleMetadata, "m1"), Keys: a.keys,
			Handler: transport.HandlerForMetadata(clerk(func(ctx context.Context, _ *wire.MetaRequest) (*wire.MetaResponse, error) {
				callers = append(callers, transport.PeerFrom(ctx).Addr) // one at a time
				return &wire.MetaResponse{}, nil
			}))})
	var ended []chan error
	stranger := func() {
		nc, err := net.Dial("tcp", s.Addresses()[0])
		require.NoError(t, err)
		t.Cleanup(func() { nc.Close() }) //nolint:errcheck // the test is over
		end := make(chan error, 1)
		ended = append(ended, end)
		go func() {
			_, err := nc.Read(make([]byte, 1))
			end <- err
		}()
	}
	for range 2 * places {
		stranger()
	}
	for _, end := range ended[:places] {
		require.Error(t, within(t, end), "the first strangers make room")
	}
	p, err := transport.NewPool(transport.PoolConfig{Mode: n.mode}, transport.PoolDeps{Identity: a.identity(t, transport.RoleClient, "c1")})
	require.NoError(t, err)
	defer p.Close() //nolint:errcheck // the test is over
	meta := p.Metadata(s.Addresses())
	_, err = meta.Do(t.Context(), &wire.MetaRequest{})
	require.NoError(t, err)
	for range 4 * places {
		stranger()
	}
	_, err = meta.Do(t.Context(), &wire.MetaRequest{})
	require.NoError(t, err)
	require.Len(t, callers, 2)
	require.Equal(t, callers[0], callers[1], "it is the same connection")
}
