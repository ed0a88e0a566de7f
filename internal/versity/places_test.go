package versity

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"
)

// TestStrangersHoldNoPlaces has clients without a key take every connection of a
// server, stay silent or send half of a request, and reconnect. A client with the
// key is served, and keeps its connection.
func TestStrangersHoldNoPlaces(t *testing.T) {
	const connections = 32
	places := NewPlaces(connections)
	server := &fasthttp.Server{Concurrency: connections, ConnState: places.state, Handler: func(rc *fasthttp.RequestCtx) {
		if string(rc.Request.Header.Peek("Authorization")) == "key" {
			places.Proved(rc)
		}
	}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	dial := func() net.Conn {
		nc, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { nc.Close() }) //nolint:errcheck // the test is over
		require.NoError(t, nc.SetDeadline(time.Now().Add(time.Minute)))
		return nc
	}
	ask := func(nc net.Conn) int {
		t.Helper()
		_, err := fmt.Fprint(nc, "GET / HTTP/1.1\r\nHost: x\r\nAuthorization: key\r\n\r\n")
		require.NoError(t, err)
		resp, err := http.ReadResponse(bufio.NewReader(nc), nil)
		require.NoError(t, err)
		return resp.StatusCode
	}
	friend := dial()
	require.Equal(t, http.StatusOK, ask(friend))
	var first net.Conn
	for n := range 4 * connections {
		nc := dial()
		if n%2 == 0 {
			_, err := io.WriteString(nc, "GET / HTTP/1.1\r\nHost: ")
			require.NoError(t, err)
		}
		if n == 0 {
			first = nc
		}
	}
	_, err = io.ReadAll(first)
	var late net.Error
	require.False(t, err != nil && errors.As(err, &late) && late.Timeout(), "the first stranger makes room")
	require.Equal(t, http.StatusOK, ask(friend))
	// A new client may meet the server before the strangers' connections have ended: S3
	// clients repeat a request that is answered 503.
	require.Eventually(t, func() bool { return ask(dial()) == http.StatusOK }, time.Minute, 10*time.Millisecond)
	require.NoError(t, l.Close())
	<-served
}

// A server ends although clients have connections on which they never sent a request.
func TestSilentConnectionsDoNotDelayTheEnd(t *testing.T) {
	places := NewPlaces(32)
	server := &fasthttp.Server{ConnState: places.state, ReadTimeout: time.Hour, Handler: places.heard(func(*fasthttp.RequestCtx) {})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	silent, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer silent.Close() //nolint:errcheck // the test is over
	resp, err := http.Get("http://" + l.Addr().String())
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Eventually(t, func() bool { return server.GetOpenConnectionsCount() == 2 }, time.Minute, time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	places.End()
	require.NoError(t, server.ShutdownWithContext(ctx))
	<-served
}
