package s3test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Fault is what a Proxy does to a request.
type Fault int

const (
	// Pass lets the request through.
	Pass Fault = iota
	// Refuse answers 403; the store does not see the request.
	Refuse
	// Fail answers 500; the store does not see the request.
	Fail
	// FailAfter answers 500 after the store has carried it out.
	FailAfter
	// Lose cuts the connection after the store has carried it out.
	Lose
	// Drop cuts the connection; the store does not see the request.
	Drop
	// CutRequest cuts the connection in the middle of the request's body.
	CutRequest
	// CutReply cuts the connection in the middle of the reply's body.
	CutReply
	// Hang never answers; the request waits until the caller's time is over.
	Hang
)

// Proxy forwards requests to a server.
type Proxy struct {
	// URL is where it listens.
	URL string

	mu   sync.Mutex // guards rule
	rule func(r *http.Request) Fault
}

// OpOf names the operation of a request, as object.Metrics does.
func OpOf(r *http.Request) string {
	q := r.URL.Query()
	switch {
	case r.Method == http.MethodHead:
		return "head"
	case r.Method == http.MethodGet && q.Has("uploads"):
		return "uploads"
	case r.Method == http.MethodGet:
		return "get"
	case r.Method == http.MethodPost && q.Has("uploads"):
		return "new_upload"
	case r.Method == http.MethodPost:
		return "complete"
	case r.Method == http.MethodDelete && q.Has("uploadId"):
		return "abort"
	case r.Method == http.MethodDelete:
		return "delete"
	case r.Header.Get("X-Amz-Copy-Source") != "" && q.Has("uploadId"):
		return "copy_part"
	case r.Header.Get("X-Amz-Copy-Source") != "":
		return "copy"
	}
	return "put_part"
}

// NewProxy runs a proxy in front of endpoint until the test ends.
func NewProxy(t testing.TB, endpoint string) *Proxy {
	t.Helper()
	target, err := url.Parse(endpoint)
	require.NoError(t, err)
	p := &Proxy{}
	// The signature covers the host that the client named, so it stays.
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = target.Scheme, target.Host, r.In.Host
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.serve(forward, w, r) }))
	t.Cleanup(s.Close)
	p.URL = s.URL
	return p
}

// Set sets the rule that decides each request; nil passes all.
func (p *Proxy) Set(rule func(r *http.Request) Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rule = rule
}

// Once applies f to the first request of an op, and returns a function that reports
// whether it happened.
func (p *Proxy) Once(op string, f Fault) (fired func() bool) {
	var mu sync.Mutex
	done := false
	p.Set(func(r *http.Request) Fault {
		mu.Lock()
		defer mu.Unlock()
		if done || OpOf(r) != op {
			return Pass
		}
		done = true
		return f
	})
	return func() bool {
		mu.Lock()
		defer mu.Unlock()
		return done
	}
}

func (p *Proxy) serve(forward http.Handler, w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	rule := p.rule
	p.mu.Unlock()
	f := Pass
	if rule != nil {
		f = rule(r)
	}
	switch f {
	case Pass:
		forward.ServeHTTP(w, r)
	case Refuse, Fail:
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(map[Fault]int{Refuse: http.StatusForbidden, Fail: http.StatusInternalServerError}[f])
	case Drop:
		_, _ = io.Copy(io.Discard, r.Body)
		panic(http.ErrAbortHandler)
	case Hang:
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	case CutRequest:
		_, _ = io.CopyN(io.Discard, r.Body, r.ContentLength/2)
		panic(http.ErrAbortHandler)
	case FailAfter, Lose:
		forward.ServeHTTP(httptest.NewRecorder(), r)
		if f == Lose {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusInternalServerError)
	case CutReply:
		reply := httptest.NewRecorder()
		forward.ServeHTTP(reply, r)
		for k, v := range reply.Header() {
			w.Header()[k] = v
		}
		w.WriteHeader(reply.Code)
		_, _ = w.Write(reply.Body.Bytes()[:reply.Body.Len()/2])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}
