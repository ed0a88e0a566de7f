package versity

import (
	"container/list"
	"context"
	"net"
	"sync"

	"github.com/valyala/fasthttp"
)

// Places are the connections of a server. The library answers those past the bound with 503,
// whoever has the others: a stranger without a key could hold them all, by saying nothing and
// coming again whenever a connection is ended. So a few places are kept free: where they would
// be taken, the connection that came first of those that have not shown a key is ended. Safe
// for concurrent use.
type Places struct {
	most int // connections, before one is ended for the next

	mu    sync.Mutex // guards what follows
	open  map[net.Conn]*list.Element
	order list.List // of those that have not shown a key, in the order in which they came
}

// spareShare is of all places that are kept free.
const spareShare = 16

// NewPlaces returns the places of a server that takes so many connections.
func NewPlaces(connections int) *Places {
	return &Places{most: connections - max(connections/spareShare, 1), open: make(map[net.Conn]*list.Element)}
}

// state is the server's hook for the states of connections.
func (p *Places) state(nc net.Conn, s fasthttp.ConnState) {
	switch s {
	case fasthttp.StateNew:
		if first := p.add(nc); first != nil {
			go first.Close() //nolint:errcheck // nothing is owed on it. One with TLS says goodbye, and may not be let to
		}
	case fasthttp.StateClosed, fasthttp.StateHijacked:
		p.mu.Lock()
		p.forget(nc)
		delete(p.open, nc)
		p.mu.Unlock()
	}
}

// add takes in a connection, and returns the one that is to be ended for it.
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

// forget takes a connection out of those that may be ended. The mutex is held.
func (p *Places) forget(nc net.Conn) {
	if e := p.open[nc]; e != nil {
		p.order.Remove(e)
		p.open[nc] = nil
	}
}

// Proved notes that a request was signed with the key: its connection is not ended for another.
// rc is what the library calls the backend with. Backends say it of requests that may take
// long; the others are over before their connection is the first.
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
