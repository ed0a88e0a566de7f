package versity

import (
	"container/list"
	"context"
	"net"
	"sync"

	"github.com/valyala/fasthttp"
)

// Places are the connections of a server. The library answers those past its limit
// with 503, whoever holds the others. A client without a key could hold them all,
// by staying silent and reconnecting. So a few places stay free. If the next
// connection would take one of these, the endpoint ends the oldest connection that
// has not proved its key. Safe for concurrent use.
type Places struct {
	most int // connections, before one is ended for the next

	mu    sync.Mutex // guards the fields below
	open  map[net.Conn]*list.Element
	order list.List // connections without a proven key, in order of arrival
	// silent are the connections on which no request has begun yet. Once the server ends, they are
	// closed.
	silent map[net.Conn]struct{}
	ended  bool
}

// spareShare is the divisor of all places that stay free.
const spareShare = 16

// NewPlaces returns the places of a server with so many connections.
func NewPlaces(connections int) *Places {
	return &Places{most: connections - max(connections/spareShare, 1), open: make(map[net.Conn]*list.Element), silent: map[net.Conn]struct{}{}}
}

// state is the server's hook for the states of connections.
func (p *Places) state(nc net.Conn, s fasthttp.ConnState) {
	switch s {
	case fasthttp.StateNew:
		p.begin(nc)
		if first := p.add(nc); first != nil {
			go first.Close() //nolint:errcheck // a failed close loses nothing; the close of a TLS connection may block
		}
	case fasthttp.StateClosed, fasthttp.StateHijacked:
		p.mu.Lock()
		p.forget(nc)
		delete(p.open, nc)
		delete(p.silent, nc)
		p.mu.Unlock()
	}
}

// begin notes a new connection.
func (p *Places) begin(nc net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		go nc.Close() //nolint:errcheck // as in state
		return
	}
	p.silent[nc] = struct{}{}
}

// heard notes that a request has begun on a connection.
func (p *Places) heard(h fasthttp.RequestHandler) fasthttp.RequestHandler {
	return func(rc *fasthttp.RequestCtx) {
		p.mu.Lock()
		delete(p.silent, rc.Conn())
		p.mu.Unlock()
		h(rc)
	}
}

// End closes the connections on which no request has begun, since the server would wait for their
// first one before it ends. Clients open connections that they then do not need.
func (p *Places) End() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	for nc := range p.silent {
		go nc.Close() //nolint:errcheck // as in state
	}
}

// add adds a connection, and returns the one to end for it.
func (p *Places) add(nc net.Conn) net.Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.order.PushBack(nc)
	p.open[nc] = e
	if first := p.order.Front(); len(p.open) > p.most && first != e {
		out := first.Value.(net.Conn)
		p.forget(out)
		return out
	}
	return nil
}

// forget removes a connection from those that may be ended. The mutex is held.
func (p *Places) forget(nc net.Conn) {
	if e := p.open[nc]; e != nil {
		p.order.Remove(e)
		p.open[nc] = nil
	}
}

// Proved notes that a request was signed with the key: its connection is not ended
// for another. rc is the context of the library's call. Backends call it for
// requests that may take long; the others are over before their connection becomes
// the oldest.
func (p *Places) Proved(rc context.Context) {
	if r, ok := rc.(*fasthttp.RequestCtx); ok {
		p.proved(r.Conn())
	}
}

func (p *Places) proved(nc net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(nc)
}
