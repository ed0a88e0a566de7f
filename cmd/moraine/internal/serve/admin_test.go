package serve

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestProfilesAreForThisHost: the admin port shows no profile to a caller on another host,
// nor to a page that a browser here loads under another name. It shows its command line to
// nobody.
func TestProfilesAreForThisHost(t *testing.T) {
	adm, err := ListenAdmin("127.0.0.1:0", NewRegistry(), func() error { return nil })
	require.NoError(t, err)
	t.Cleanup(func() { _ = adm.listener.Close() })
	for _, c := range []struct {
		path, from, host string
		want             int
	}{
		{"/debug/pprof/", "127.0.0.1:1", "127.0.0.1:7401", 200},
		{"/debug/pprof/goroutine?debug=1", "[::1]:1", "localhost:7401", 200},
		{"/debug/pprof/goroutine?debug=1", "[::ffff:127.0.0.1]:1", "localhost", 200},
		{"/debug/pprof/goroutine?debug=2", "10.0.0.1:1", "10.0.0.2:7401", 403},
		{"/debug/pprof/goroutine?debug=2", "10.0.0.1:1", "localhost:7401", 403},
		{"/debug/pprof/profile", "10.0.0.1:1", "10.0.0.2:7401", 403},
		{"/debug/pprof/trace", "10.0.0.1:1", "10.0.0.2:7401", 403},
		{"/debug/pprof/symbol", "10.0.0.1:1", "10.0.0.2:7401", 403},
		{"/debug/pprof/heap", "127.0.0.1:1", "rebound.example:7401", 403},
		{"/debug/pprof/cmdline", "127.0.0.1:1", "127.0.0.1:7401", 404},
		{"/debug/pprof/cmdline", "10.0.0.1:1", "10.0.0.2:7401", 404},
		{"/metrics", "10.0.0.1:1", "10.0.0.2:7401", 200},
		{"/healthz", "10.0.0.1:1", "10.0.0.2:7401", 200},
		{"/", "10.0.0.1:1", "10.0.0.2:7401", 404},
	} {
		r := httptest.NewRequest(http.MethodGet, c.path, nil)
		r.RemoteAddr, r.Host = c.from, c.host
		w := httptest.NewRecorder()
		adm.server.Handler.ServeHTTP(w, r)
		require.Equal(t, c.want, w.Code, "%s from %s at %s", c.path, c.from, c.host)
	}
}

// TestTheAdminPortIsBounded: silent connections use a bounded number of descriptors, and
// the port answers again when they end.
func TestTheAdminPortIsBounded(t *testing.T) {
	adm, err := ListenAdmin("127.0.0.1:0", NewRegistry(), func() error { return nil })
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- adm.Run(ctx) }()
	addr := adm.listener.Addr().String()
	var silent []net.Conn
	for range 2 * maxAdminConns {
		c, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		silent = append(silent, c)
	}
	last := silent[len(silent)-1] // the kernel assigns them in order
	require.NoError(t, last.SetReadDeadline(time.Now().Add(30*time.Second)))
	_, err = last.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF, "what is past the bound is closed at once")
	for _, c := range silent {
		c.Close()
	}
	require.Eventually(t, func() bool {
		resp, err := http.Get("http://" + addr + "/healthz")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}, 30*time.Second, 10*time.Millisecond)
	stop()
	require.NoError(t, <-ended)
}
