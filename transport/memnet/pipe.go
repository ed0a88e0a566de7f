package memnet

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// pipeBuffer is how many bytes one direction of a pipe holds before writes wait.
const pipeBuffer = 1 << 20

// pipe is one end of a raft connection: a stream with a buffer in each direction. A
// partition delays it, as TCP would within its timeouts, and the crash of either
// node ends it.
type pipe struct {
	node, peer *Node
	in, out    *flow
	closed     chan struct{}
	once       sync.Once

	read, write deadline
}

// flow is one direction.
type flow struct {
	net      *Net
	from, to string

	mu      sync.Mutex // guards the fields below
	parts   []part
	bytes   int
	ended   bool          // the writer closed
	broken  bool          // the reader closed
	changed chan struct{} // closed and replaced at every change
}

type part struct {
	data []byte
	at   time.Time // arrival time
}

func newPipe(a, b *Node) (near, far *pipe) {
	ab := &flow{net: a.net, from: a.id, to: b.id, changed: make(chan struct{})}
	ba := &flow{net: a.net, from: b.id, to: a.id, changed: make(chan struct{})}
	near = &pipe{node: a, peer: b, in: ba, out: ab, closed: make(chan struct{})}
	far = &pipe{node: b, peer: a, in: ab, out: ba, closed: make(chan struct{})}
	return near, far
}

func (f *flow) change() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// take copies arrived bytes into b. If none have arrived, it returns 0 and when to
// check again.
func (f *flow) take(b []byte) (n int, ended bool, changed <-chan struct{}, wait time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.parts) == 0 {
		return 0, f.ended, f.changed, 0
	}
	first := &f.parts[0]
	if d := time.Until(first.at); d > 0 {
		return 0, false, f.changed, d
	}
	n = copy(b, first.data)
	first.data = first.data[n:]
	if len(first.data) == 0 {
		f.parts = f.parts[1:]
	}
	f.bytes -= n
	f.change()
	return n, false, nil, 0
}

// put appends as much of b as fits.
func (f *flow) put(b []byte) (n int, changed <-chan struct{}, err error) {
	delay := f.net.draw(f.from, f.to, func(Faults) float64 { return 0 }).delay
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.broken {
		return 0, nil, io.ErrClosedPipe
	}
	if n = min(len(b), pipeBuffer-f.bytes); n == 0 {
		return 0, f.changed, nil
	}
	at := time.Now().Add(delay)
	if k := len(f.parts); k > 0 && at.Before(f.parts[k-1].at) {
		at = f.parts[k-1].at // a stream keeps its order
	}
	f.parts = append(f.parts, part{append([]byte(nil), b[:n]...), at})
	f.bytes += n
	f.change()
	return n, nil, nil
}

// end closes the flow from the writer's side.
func (f *flow) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	f.change()
}

// abort closes the flow from the reader's side.
func (f *flow) abort() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.broken = true
	f.change()
}

// Read implements net.Conn.
func (p *pipe) Read(b []byte) (int, error) {
	for {
		cut, shape := p.in.net.state(p.in.from, p.in.to)
		var changed <-chan struct{}
		var wait time.Duration
		if !cut {
			var n int
			var ended bool
			n, ended, changed, wait = p.in.take(b)
			if n > 0 || len(b) == 0 {
				return n, nil
			}
			if ended {
				return 0, io.EOF
			}
		}
		if err := p.wait(&p.read, shape, changed, wait); err != nil {
			return 0, err
		}
	}
}

// Write implements net.Conn.
func (p *pipe) Write(b []byte) (int, error) {
	done := 0
	for done < len(b) {
		if err := p.dead(&p.write); err != nil {
			return done, err
		}
		n, changed, err := p.out.put(b[done:])
		if err != nil {
			return done, err
		}
		done += n
		if n == 0 {
			if err := p.wait(&p.write, nil, changed, 0); err != nil {
				return done, err
			}
		}
	}
	return done, nil
}

// wait returns nil when it is worth checking again.
func (p *pipe) wait(d *deadline, shape, changed <-chan struct{}, arrives time.Duration) error {
	if err := p.dead(d); err != nil {
		return err
	}
	var timer <-chan time.Time
	if arrives > 0 {
		t := time.NewTimer(arrives)
		defer t.Stop()
		timer = t.C
	}
	expired, moved := d.channels()
	select {
	case <-shape:
	case <-changed:
	case <-timer:
	case <-moved:
	case <-expired:
		return os.ErrDeadlineExceeded
	case <-p.closed:
		return net.ErrClosed
	case <-p.node.ctx.Done():
		return net.ErrClosed
	case <-p.peer.ctx.Done():
		return io.ErrUnexpectedEOF
	}
	return nil
}

// dead returns the error of a pipe that is closed or broken.
func (p *pipe) dead(d *deadline) error {
	expired, _ := d.channels()
	select {
	case <-p.closed:
		return net.ErrClosed
	case <-p.node.ctx.Done():
		return net.ErrClosed
	case <-p.peer.ctx.Done():
		return io.ErrUnexpectedEOF
	case <-expired:
		return os.ErrDeadlineExceeded
	default:
		return nil
	}
}

// Close implements net.Conn.
func (p *pipe) Close() error {
	p.once.Do(func() {
		close(p.closed)
		p.out.end()
		p.in.abort()
	})
	return nil
}

// LocalAddr implements net.Conn.
func (p *pipe) LocalAddr() net.Addr { return addr(p.node.Address()) }

// RemoteAddr implements net.Conn.
func (p *pipe) RemoteAddr() net.Addr { return addr(p.peer.Address()) }

// SetDeadline implements net.Conn.
func (p *pipe) SetDeadline(t time.Time) error {
	p.read.set(t)
	p.write.set(t)
	return nil
}

// SetReadDeadline implements net.Conn.
func (p *pipe) SetReadDeadline(t time.Time) error {
	p.read.set(t)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (p *pipe) SetWriteDeadline(t time.Time) error {
	p.write.set(t)
	return nil
}

// deadline is the time after which reads, or writes, fail. The zero value means
// never.
type deadline struct {
	mu      sync.Mutex // guards the fields below
	timer   *time.Timer
	expired chan struct{} // closed when it has passed
	moved   chan struct{} // closed and replaced when the deadline changes
}

func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if d.moved != nil {
		close(d.moved)
	}
	d.moved, d.expired = make(chan struct{}), make(chan struct{})
	if t.IsZero() {
		return
	}
	expired := d.expired
	if left := time.Until(t); left > 0 {
		d.timer = time.AfterFunc(left, func() { close(expired) })
	} else {
		close(expired)
	}
}

func (d *deadline) channels() (expired, moved <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.moved == nil {
		d.moved, d.expired = make(chan struct{}), make(chan struct{})
	}
	return d.expired, d.moved
}
