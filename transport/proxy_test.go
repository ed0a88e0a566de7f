package transport_test

import (
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// proxy stands between a pool and a server, and damages or delays what passes.
type proxy struct {
	l      net.Listener
	target string

	mu     sync.Mutex
	conns  []net.Conn
	opened int
	// onData sees each piece in transit and returns the bytes to forward; nil cuts
	// the connection. It may block. up means from the caller to the server.
	onData func(up bool, p []byte) []byte
}

func newProxy(t testing.TB, target string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{l: l, target: target}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", target)
			if err != nil {
				near.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, near, far)
			p.opened++
			p.mu.Unlock()
			wg.Go(func() { p.pass(near, far, true) })
			wg.Go(func() { p.pass(far, near, false) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.cut()
		wg.Wait()
	})
	return p
}

func (p *proxy) addr() string { return p.l.Addr().String() }

func (p *proxy) pass(from, to net.Conn, up bool) {
	defer from.Close()
	defer to.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			p.mu.Lock()
			f := p.onData
			p.mu.Unlock()
			out := buf[:n]
			if f != nil {
				if out = f(up, out); out == nil {
					return
				}
			}
			if _, err := to.Write(out); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// set replaces onData.
func (p *proxy) set(f func(up bool, b []byte) []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.onData = f
}

// cut ends all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}

func (p *proxy) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.opened
}
