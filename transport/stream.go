package transport

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// stream is a connection after its handshake.
type stream interface {
	net.Conn
	// writeVec writes all of bufs, which it consumes. A write deadline ends it with
	// os.ErrDeadlineExceeded, and bufs then holds the rest. Another call, even with
	// an empty rest, must then complete it.
	writeVec(bufs *net.Buffers) error
}

// tlsStream is an encrypted connection. Encryption already copies the contents of a
// record. So records are gathered below it (sink) and leave in large writes.
type tlsStream struct {
	*tls.Conn
	sink  *sink
	small []byte // joins a header and its message into one record
}

const (
	tlsRecord = 16 << 10
	// tlsReadBuffer is how much encrypted bulk traffic is read at once.
	tlsReadBuffer = 128 << 10
	tlsSinkSize   = 128 << 10
)

// fit adapts the layer below TLS to a connection of class c.
func (s *tlsStream) fit(c Class) {
	if c == Control {
		s.sink.in.resize(controlReadBuffer)
	} else {
		s.sink.in.resize(tlsReadBuffer)
	}
	s.sink.direct(c == Raft)
}

func (s *tlsStream) writeVec(bufs *net.Buffers) error {
	s.sink.gather()
	for _, b := range *bufs {
		if room := tlsRecord - len(s.small); len(s.small) > 0 || len(b) < tlsRecord/2 {
			n := min(room, len(b))
			s.small = append(s.small, b[:n]...)
			b = b[n:]
			if len(s.small) < tlsRecord {
				continue
			}
			if err := s.flushSmall(); err != nil {
				return err
			}
		}
		if len(b) > 0 {
			if _, err := s.Conn.Write(b); err != nil {
				return err
			}
		}
	}
	if err := s.flushSmall(); err != nil {
		return err
	}
	*bufs = (*bufs)[len(*bufs):]
	return s.sink.flush()
}

func (s *tlsStream) flushSmall() error {
	if len(s.small) == 0 {
		return nil
	}
	_, err := s.Conn.Write(s.small)
	s.small = s.small[:0]
	return err
}

// Close ends the connection without a TLS close message: frames carry their length,
// and the message could block.
func (s *tlsStream) Close() error { return s.sink.Conn.Close() }

// sink is the connection below TLS. Reads come from a buffer, since a record is
// small compared with what one read may return. Writes are gathered between
// gather and flush. TLS does not survive a failed write, so after the handshake
// sink hides deadlines from it. It keeps the unwritten bytes, and flush reports
// the deadline.
type sink struct {
	net.Conn
	in *reader

	mu    sync.Mutex // guards the fields below; held over writes, since reading may cause some too (key updates, alerts)
	hold  bool
	late  bool // a deadline passed: nothing is written until flush
	ready bool // the handshake is over
	plain bool // outside of gather and flush, writes pass through with their deadlines
	out   []byte
}

func newSink(c net.Conn, now func() int64) *sink {
	return &sink{Conn: c, in: newReader(c, helloReadBuffer, now)}
}

func (s *sink) Read(p []byte) (int, error) {
	if s.in.r == s.in.w {
		if len(p) >= len(s.in.buf) {
			return s.in.read(p)
		}
		s.in.r, s.in.w = 0, 0
		n, err := s.in.read(s.in.buf)
		if err != nil {
			return 0, err
		}
		s.in.w = n
	}
	return s.in.Read(p)
}

func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ready || s.plain && !s.hold {
		return s.Conn.Write(p)
	}
	s.out = append(s.out, p...)
	if !s.late && (!s.hold || len(s.out) >= tlsSinkSize-tlsRecord) {
		if err := s.flushLocked(); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// direct sets whether the connection's user writes and sets deadlines itself, as on
// a stream of the log.
func (s *sink) direct(yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plain = yes
}

func (s *sink) gather() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hold, s.ready = true, true
}

// flush writes the gathered bytes. It returns os.ErrDeadlineExceeded if a deadline
// passed at any time since gather; nothing is lost then.
func (s *sink) flush() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hold = false
	if !s.late {
		if err := s.flushLocked(); err != nil {
			return err
		}
	}
	if s.late {
		s.late = false
		return os.ErrDeadlineExceeded
	}
	return nil
}

func (s *sink) flushLocked() error {
	if len(s.out) == 0 {
		return nil
	}
	n, err := s.Conn.Write(s.out)
	s.out = s.out[:copy(s.out, s.out[n:])]
	if errors.Is(err, os.ErrDeadlineExceeded) {
		s.late, err = true, nil
	}
	if cap(s.out) > 4*tlsSinkSize && len(s.out) == 0 {
		s.out = nil // it grew after a deadline had passed
	}
	return err
}

// heldConn is a connection of which a reader already holds some bytes.
type heldConn struct {
	net.Conn
	r *reader
}

func (c heldConn) Read(p []byte) (int, error) { return c.r.Read(p) }

// aLongTimeAgo as a read deadline interrupts the read.
var aLongTimeAgo = time.Unix(1, 0)
