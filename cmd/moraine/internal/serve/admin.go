// Package serve is what the commands that run servers share. It has the admin port, the watch
// over the server's certificate, the heap, and the root key of an S3 endpoint. It also starts
// and ends the parts of a server together.
//
// One path through it: a command makes its parts -> ListenAdmin opens /metrics and /healthz
// -> RunAll runs the parts until a signal ends them or one of them fails.
package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// NewRegistry returns a registry that already has the Go runtime's and the
// process's own metrics.
func NewRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// Admin is the second port of a server: /metrics, /healthz and /debug/pprof, over plain
// HTTP. It changes nothing, and listens on loopback unless a flag names another address.
// Profiles cost processor time and show what the process does. The port gives them to
// callers on this host only. It never gives the command line, which may hold a key.
type Admin struct {
	listener net.Listener
	server   *http.Server
}

// ListenAdmin opens the port at once, so that a port in use is an error at start. Each
// request for /healthz calls healthy; nil means that the server works.
func ListenAdmin(addr string, reg *prometheus.Registry, healthy func() error) (*Admin, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("--admin-listen: %w", listenHint(err))
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if err := healthy(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("/debug/pprof/", onThisHost(pprof.Index))
	mux.HandleFunc("/debug/pprof/cmdline", http.NotFound)
	mux.HandleFunc("/debug/pprof/profile", onThisHost(pprof.Profile))
	mux.HandleFunc("/debug/pprof/symbol", onThisHost(pprof.Symbol))
	mux.HandleFunc("/debug/pprof/trace", onThisHost(pprof.Trace))
	return &Admin{listener: &bounded{Listener: l, slots: make(chan struct{}, maxAdminConns)}, server: &http.Server{Handler: mux,
		ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Minute, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}}, nil
}

// maxAdminConns bounds the connections of the admin port, which anybody may open. They must
// not use up the descriptors that the server itself needs.
const maxAdminConns = 64

// bounded closes at once each connection past a bound.
type bounded struct {
	net.Listener
	slots chan struct{}
}

// Accept implements net.Listener.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case b.slots <- struct{}{}:
			return &boundedConn{Conn: c, free: sync.OnceFunc(func() { <-b.slots })}, nil
		default:
			_ = c.Close()
		}
	}
}

type boundedConn struct {
	net.Conn
	free func()
}

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	c.free()
	return c.Conn.Close()
}

// onThisHost refuses callers on other hosts. It also refuses a browser on this host that a
// web page sent here under a host name of the page's own.
func onThisHost(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		named := net.ParseIP(strings.Trim(host, "[]"))
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil || !from.Addr().Unmap().IsLoopback() || host != "localhost" && named == nil {
			http.Error(w, "profiles are only for callers on this host: use the address of the server's "+
				"loopback interface", http.StatusForbidden)
			return
		}
		h(w, r)
	}
}

// Close frees the port where Run was not called.
func (a *Admin) Close() error { return a.listener.Close() }

// Run serves until ctx ends.
func (a *Admin) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = a.server.Close() })
	defer stop()
	if err := a.server.Serve(a.listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// listenHint says what to do about an address on which the process cannot listen.
func listenHint(err error) error {
	var addr *net.AddrError
	if errors.As(err, &addr) {
		return cli.UsageError("cannot listen on %q: %s; write HOST:PORT", addr.Addr, addr.Err)
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Addr != nil {
		return fmt.Errorf("cannot listen on %s: %v; choose another address, or end the process that "+
			"uses it", op.Addr, op.Err)
	}
	return err
}

// CheckFree fails where an address that another process will listen on is in use. The error
// then comes at once and names the flag.
func CheckFree(flag string, addresses ...string) error {
	for _, address := range addresses {
		if strings.ContainsRune(address, '/') {
			continue // a unix socket
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			return fmt.Errorf("%s: %w", flag, listenHint(err))
		}
		if err := l.Close(); err != nil {
			return err
		}
	}
	return nil
}
