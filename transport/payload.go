package transport

import (
	"fmt"
	"sync/atomic"
)

// connPayload is the payload of a request, still on its connection.
type connPayload struct {
	conn *serverConn
	n    int
	used atomic.Bool
}

// Len implements Payload.
func (p *connPayload) Len() int { return p.n }

// ReadInto implements Payload.
func (p *connPayload) ReadInto(dst []byte, each func([]byte)) error {
	if len(dst) < p.n {
		panic(fmt.Sprintf("transport: a payload of %d bytes into %d", p.n, len(dst)))
	}
	return p.take(func(r *reader) error { return r.payload(dst[:p.n], each) })
}

// Discard implements Payload.
func (p *connPayload) Discard() error {
	return p.take(func(r *reader) error { return r.discard(p.n) })
}

// take reads the payload, and makes another goroutine read what comes next.
func (p *connPayload) take(read func(*reader) error) error {
	if p.used.Swap(true) {
		panic("transport: payload read twice")
	}
	c := p.conn
	c.payloadAt.Store(c.server.now())
	err := read(c.r)
	c.payloadAt.Store(0)
	if err != nil {
		c.close(err)
		return lost(c.peer.Load().Node, err)
	}
	c.server.workers.start(task{conn: c})
	return nil
}
