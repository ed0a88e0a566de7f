package transport_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// A server ends its handlers' contexts at their callers' deadlines by itself, even
// if the caller does not cancel and a later deadline came first. A request without
// a deadline gets one of an hour, and continues until then.
func TestServerEndsRequestsAtTheirDeadlines(t *testing.T) {
	n := network{mode: transport.Insecure}
	a := newAuthority(t)
	ended := make(chan uint64, 4)
	var all sync.WaitGroup
	all.Add(4)
	s := n.serve(t, a, transport.RoleMetadata, "m1", transport.HandlerForMetadata(clerk(
		func(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
			_, limited := ctx.Deadline()
			derived, cancel := context.WithCancel(ctx)
			defer cancel()
			all.Done()
			<-derived.Done()
			atDeadline := req.Session != 3 // the third has one after an hour
			if limited && (derived.Err() == context.DeadlineExceeded) == atDeadline && ctx.Err() == derived.Err() {
				ended <- req.Session
			}
			return &wire.MetaResponse{}, nil
		})))
	nc, err := net.Dial("tcp", s.Addresses()[0])
	require.NoError(t, err)
	_, err = transport.RawHello(nc, &wire.Hello{MinVersion: 1, MaxVersion: 1, Class: uint32(transport.Control), Role: string(transport.RoleClient), Node: "c1", Scope: "/"})
	require.NoError(t, err)
	for i, millis := range []uint32{900, 100, 0, 500} {
		id := uint64(i + 1)
		_, err := nc.Write(transport.EncodeFrame(transport.Header{Class: transport.Control, Kind: transport.KindMeta, ID: id, Deadline: millis},
			&wire.MetaRequest{Session: id}))
		require.NoError(t, err)
	}
	all.Wait()
	require.ElementsMatch(t, []uint64{1, 2, 4}, []uint64{within(t, ended), within(t, ended), within(t, ended)})
	require.Empty(t, ended)
	require.NoError(t, nc.Close())
	require.EqualValues(t, 3, within(t, ended), "it ends with its connection")
}

// within returns a value from c, or fails the test after a time limit.
func within[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(30 * time.Second):
		require.Fail(t, "nothing came")
		panic("not reached")
	}
}
