package transport_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// A server refuses unknown requests, and known ones in the wrong place; the
// connection survives.
func TestRequestsThatDoNotFit(t *testing.T) {
	n := network{mode: transport.Insecure}
	a := newAuthority(t)
	chunks := n.serve(t, a, transport.RoleChunkserver, "n1", transport.HandlerForChunks(newShelf()))
	meta := n.serve(t, a, transport.RoleMetadata, "m1", transport.HandlerForMetadata(clerk(answer)))
	x, y := newProxy(t, chunks.Addresses()[0]), newProxy(t, meta.Addresses()[0])
	p := n.pool(t, a, transport.RoleClient, "c1")
	cs := p.Caller(transport.RoleChunkserver, "n1", []string{x.addr()})
	ms := p.Caller(transport.RoleMetadata, "", []string{y.addr()})
	ctx := testContext(t)
	for name, c := range map[string]struct {
		to   transport.Caller
		call transport.Call
		kind moraine.Kind
	}{
		"unknown kind":                {cs, transport.Call{Kind: 999, Class: transport.Control, Message: &wire.Done{}}, moraine.Unimplemented},
		"unknown kind with a payload": {cs, transport.Call{Kind: 999, Class: transport.Control, Message: &wire.Done{}, Payload: [][]byte{make([]byte, 1<<20)}}, moraine.Unimplemented},
		"metadata of a chunkserver":   {cs, transport.Call{Kind: transport.KindMeta, Class: transport.Bulk, Message: &wire.MetaRequest{}}, moraine.Unimplemented},
		"a chunk on control":          {cs, transport.Call{Kind: transport.KindPutChunk, Class: transport.Control, Message: &wire.PutChunk{}, Payload: [][]byte{make([]byte, 100000)}}, moraine.PermissionDenied},
		"a chunk of metadata":         {ms, transport.Call{Kind: transport.KindGetChunk, Class: transport.Control, Message: &wire.GetChunk{}}, moraine.Unimplemented},
		"metadata with a payload":     {ms, transport.Call{Kind: transport.KindMeta, Class: transport.Control, Message: &wire.MetaRequest{}, Payload: [][]byte{{1}}}, moraine.InvalidArgument},
		"not the kind's message":      {ms, transport.Call{Kind: transport.KindMeta, Class: transport.Control, Message: &wire.Hello{Release: "\x0a\x05a"}}, moraine.InvalidArgument},
		"a token on control":          {ms, transport.Call{Kind: transport.KindRefreshToken, Class: transport.Control, Message: &wire.RefreshToken{}}, moraine.InvalidArgument},
		"a message too large":         {ms, transport.Call{Kind: transport.KindMeta, Class: transport.Control, Message: &wire.TokenClaims{Cluster: make([]byte, transport.MaxMessage)}}, moraine.TooLarge},
	} {
		_, err := c.to.Call(ctx, &c.call)
		require.Equal(t, c.kind, moraine.KindOf(err), "%s: %v", name, err)
	}
	require.LessOrEqual(t, x.count(), 2, "one for each class")
	require.Equal(t, 1, y.count())
}

// Idle connections are closed, and the next call reconnects.
func TestIdleConnectionsAreClosed(t *testing.T) {
	n := network{mode: transport.Insecure}
	a := newAuthority(t)
	s := n.serve(t, a, transport.RoleMetadata, "m1", transport.HandlerForMetadata(clerk(answer)))
	reg := prometheus.NewRegistry()
	p, err := transport.NewPool(transport.PoolConfig{Mode: n.mode, Role: transport.RoleClient, Node: "c1", IdleTimeout: 50 * time.Millisecond},
		transport.PoolDeps{Metrics: transport.NewMetrics(reg)})
	require.NoError(t, err)
	defer p.Close()
	m := p.Metadata(s.Addresses())
	for range 2 {
		_, err = m.Do(testContext(t), &wire.MetaRequest{})
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			return gathered(t, reg)[`moraine_transport_connections{class="control",network="tcp",side="client"}`] == 0
		}, 10*time.Second, 10*time.Millisecond)
	}
	require.EqualValues(t, 2, gathered(t, reg)[`moraine_transport_dials_total{outcome="ok"}`])
}

func TestMetrics(t *testing.T) {
	n := network{mode: transport.Insecure}
	a, reg := newAuthority(t), prometheus.NewRegistry()
	m := transport.NewMetrics(reg)
	sh := newShelf()
	s, stop := startServer(t, transport.ServerConfig{Addresses: []string{n.address(t)}, Mode: n.mode, Role: transport.RoleChunkserver, Node: "n1", Cluster: cluster},
		transport.ServerDeps{Handler: transport.HandlerForChunks(sh), Keys: a.keys, Metrics: m})
	p, err := transport.NewPool(transport.PoolConfig{Mode: n.mode, Role: transport.RoleClient, Node: "c1"}, transport.PoolDeps{Metrics: m})
	require.NoError(t, err)
	c := p.Chunks("n1", s.Addresses())
	_, err = put(testContext(t), c, 1, []byte("x"))
	require.ErrorIs(t, err, moraine.Unauthenticated)
	p.SetToken(a.token(t, "c1", time.Hour))
	eventually(t, func() error { _, err := put(testContext(t), c, 1, random(1<<20, 1)); return err })
	_, _, err = c.Get(testContext(t), &wire.GetChunk{Stripe: 9}, nil, nil)
	require.ErrorIs(t, err, moraine.NotFound)
	require.NoError(t, p.Close())
	stop()
	got := gathered(t, reg)
	for name, least := range map[string]float64{
		`moraine_transport_requests_total{kind="put_chunk",outcome="ok",side="server"}`:        1,
		`moraine_transport_requests_total{kind="put_chunk",outcome="ok",side="client"}`:        1,
		`moraine_transport_requests_total{kind="get_chunk",outcome="not found",side="client"}`: 1,
		`moraine_transport_requests_total{kind="get_chunk",outcome="not found",side="server"}`: 1,
		`moraine_transport_request_seconds{kind="put_chunk",side="server"}`:                    1,
		`moraine_transport_received_bytes_total{class="bulk",side="server"}`:                   1 << 20,
		`moraine_transport_refused_connections_total{reason="not authenticated"}`:              1,
		`moraine_transport_dials_total{outcome="ok"}`:                                          1,
	} {
		require.GreaterOrEqual(t, got[name], least, name)
	}
	for name, v := range got {
		if strings.HasPrefix(name, "moraine_transport_connections{") || strings.HasPrefix(name, "moraine_transport_in_flight") {
			require.Zero(t, v, name)
		}
	}
}

// gathered is every series of reg; a histogram counts its observations.
func gathered(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	families, err := reg.Gather()
	require.NoError(t, err)
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			name := f.GetName()
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			all[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return all
}

func TestErrorsOnTheWire(t *testing.T) {
	cause := errors.New("disk 3")
	for _, err := range []error{
		&moraine.Error{Op: "put", Ref: "x/1", Kind: moraine.IOError, Err: cause},
		&moraine.Error{Op: "put", Kind: moraine.Internal},
		fmt.Errorf("layers: %w", &moraine.Error{Op: "o", Kind: moraine.Stale}),
		moraine.NotFound,
		context.DeadlineExceeded,
		errors.New("anything"),
	} {
		back := transport.ErrorFromWire(transport.ErrorToWire(err))
		var e *moraine.Error
		require.ErrorAs(t, back, &e)
		want := moraine.KindOf(err)
		if errors.Is(err, context.DeadlineExceeded) {
			want = moraine.Timeout
		}
		require.Equal(t, want, e.Kind, "%v", err)
	}
	require.NoError(t, transport.ErrorFromWire(transport.ErrorToWire(nil)))
	whole := &moraine.Error{Op: "put", Ref: "x/1", Kind: moraine.IOError, Err: cause}
	require.EqualError(t, transport.ErrorFromWire(transport.ErrorToWire(whole)), whole.Error())
	// A kind of a later version stays unchanged.
	require.Equal(t, moraine.Kind(200), moraine.KindOf(transport.ErrorFromWire(&wire.Error{Kind: 200})))
	require.Equal(t, moraine.Internal, moraine.KindOf(transport.ErrorFromWire(&wire.Error{Kind: 70000})))
}
