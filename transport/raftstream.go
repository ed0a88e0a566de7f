package transport

import (
	"net"
	"sync"
	"time"
)

// raftListener passes connections of class Raft to the log's own transport.
type raftListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once

	mu   sync.Mutex // guards addr
	addr string
}

func newRaftListener(addr string) *raftListener {
	return &raftListener{conns: make(chan net.Conn), closed: make(chan struct{}), addr: addr}
}

// RaftListener returns the listener of connections of class Raft. Each comes from
// another metadata server of the cluster, is authenticated, and then carries raw
// bytes. Its address is the server's first one.
func (s *Server) RaftListener() net.Listener { return s.raft }

func (l *raftListener) setAddr(addr string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.addr = addr
}

// serve offers c to Accept, and returns when c is closed.
func (l *raftListener) serve(c *serverConn) {
	rc := &raftConn{heldConn: heldConn{c.stream, c.r}, done: make(chan struct{})}
	select {
	case l.conns <- rc:
		select {
		case <-rc.done:
		case <-l.closed:
			rc.Close() //nolint:errcheck // a failed close loses nothing
		}
	case <-l.closed:
		rc.Close() //nolint:errcheck // a failed close loses nothing
	}
}

func (l *raftListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept and all connections.
func (l *raftListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *raftListener) Addr() net.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	return raftAddr(l.addr)
}

// raftAddr is an address in the form of the settings.
type raftAddr string

func (raftAddr) Network() string  { return "moraine" }
func (a raftAddr) String() string { return string(a) }

// raftConn reports when it is closed.
type raftConn struct {
	heldConn
	once sync.Once
	done chan struct{} // nil on the side that dialled
	// Only on the side that dialled:
	expiry *time.Timer // ends it with its certificates
	remote Peer
	drop   func() // makes the pool forget it
}

func (c *raftConn) Close() error {
	err := c.heldConn.Close()
	if c.expiry != nil {
		c.expiry.Stop()
	}
	if c.drop != nil {
		c.drop()
	}
	if c.done != nil {
		c.once.Do(func() { close(c.done) })
	}
	return err
}
