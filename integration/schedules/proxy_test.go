package schedules_test

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"

	"github.com/morainefs/moraine/internal/netns"
)

// proxy accepts the connections of a server, on its host, and forwards them to the
// socket where the server listens. It can lose the server's replies.
type proxy struct {
	listener net.Listener
	socket   string // path
	losing   atomic.Bool
	lost     atomic.Int64

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	wait  sync.WaitGroup
}

// lostOfReplies: while replies are lost, one in so many pieces of replies is lost,
// with its connection.
const lostOfReplies = 8

// newProxy listens at address on a host.
func newProxy(n *netns.Net, host, address, socket string) (*proxy, error) {
	p := &proxy{socket: socket, conns: map[net.Conn]struct{}{}}
	err := n.Within(host, func() (err error) {
		p.listener, err = net.Listen("tcp", address)
		return err
	})
	if err != nil {
		return nil, err
	}
	p.wait.Go(p.accept)
	return p, nil
}

func (p *proxy) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		s, err := net.Dial("unix", p.socket)
		if err != nil || !p.keep(c, s) {
			c.Close() //nolint:errcheck // the server is down
			if s != nil {
				s.Close() //nolint:errcheck // likewise
			}
			continue
		}
		p.wait.Go(func() {
			_, _ = io.Copy(s, c)
			p.drop(c, s)
		})
		p.wait.Go(func() {
			p.answer(c, s)
			p.drop(c, s)
		})
	}
}

// answer forwards the server's output until a piece of it is lost: the request was
// served, and the caller gets no answer.
func (p *proxy) answer(c, s net.Conn) {
	buf := make([]byte, 128<<10)
	for {
		n, err := s.Read(buf)
		if n > 0 && p.losing.Load() && rand.IntN(lostOfReplies) == 0 {
			p.lost.Add(1)
			return
		}
		if n > 0 {
			if _, err := c.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// keep remembers a pair of connections; false means that the proxy is closed.
func (p *proxy) keep(both ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns == nil {
		return false
	}
	for _, c := range both {
		p.conns[c] = struct{}{}
	}
	return true
}

func (p *proxy) drop(both ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range both {
		c.Close() //nolint:errcheck // it is of no use any more
		delete(p.conns, c)
	}
}

// Close ends all connections.
func (p *proxy) Close() error {
	err := p.listener.Close()
	p.mu.Lock()
	for c := range p.conns {
		err = errors.Join(err, ignoreClosed(c.Close()))
	}
	p.conns = nil
	p.mu.Unlock()
	p.wait.Wait()
	return err
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
