package transport

import (
	"errors"
	"io"
	"os"
	"sync/atomic"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
)

// pieceSize is how many bytes of a payload are read, and then passed to `each`, at once. They are
// still in the processor's cache when their checksum is computed. A piece may have up to a block
// more, from the read before.
const pieceSize = 256<<10 - moraine.BlockSize

// Sizes of a reader's buffer, in bytes: during the handshake and, after it, by
// class. A bulk connection's buffer is small, since the part of a payload that it
// receives must be copied out.
const (
	helloReadBuffer   = 2 << 10
	controlReadBuffer = 32 << 10
	bulkReadBuffer    = 8 << 10
)

func readBuffer(c Class) int {
	if c == Control {
		return controlReadBuffer
	}
	return bulkReadBuffer
}

// reader reads frames from a connection. One goroutine uses it at a time.
type reader struct {
	src  io.Reader
	buf  []byte
	r, w int // buf[r:w] is read and not yet used

	// interrupted, if not nil, is called when a read exceeded a deadline, and
	// decides whether to continue; the reader itself sets no deadlines.
	interrupted func() error
	// last is when bytes last arrived, in nanoseconds of the connection's clock.
	now  func() int64
	last atomic.Int64
	// bytes counts the received bytes.
	bytes atomic.Uint64
}

func newReader(src io.Reader, size int, now func() int64) *reader {
	r := &reader{src: src, buf: make([]byte, size), now: now}
	r.last.Store(now())
	return r
}

// resize gives the reader a buffer of another size, which must hold the buffered
// bytes.
func (r *reader) resize(size int) {
	buf := make([]byte, max(size, r.w-r.r))
	r.w = copy(buf, r.buf[r.r:r.w])
	r.r, r.buf = 0, buf
}

// read is one read from the connection.
func (r *reader) read(p []byte) (int, error) {
	for {
		n, err := r.src.Read(p)
		if n > 0 {
			r.last.Store(r.now())
			r.bytes.Add(uint64(n))
			return n, nil
		}
		switch {
		case err == nil:
			continue
		case r.interrupted != nil && errors.Is(err, os.ErrDeadlineExceeded):
			if err := r.interrupted(); err != nil {
				return 0, err
			}
		default:
			return 0, err
		}
	}
}

// fill makes at least n bytes (no more than the buffer holds) available.
func (r *reader) fill(n int) error {
	if r.w-r.r >= n {
		return nil
	}
	if r.r > 0 {
		copy(r.buf, r.buf[r.r:r.w])
		r.w -= r.r
		r.r = 0
	}
	for r.w < n {
		m, err := r.read(r.buf[r.w:])
		if err != nil {
			if err == io.EOF && r.w > 0 {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		r.w += m
	}
	return nil
}

// Read implements io.Reader, so that buffered bytes are not lost when a connection
// changes hands.
func (r *reader) Read(p []byte) (int, error) {
	if r.r < r.w {
		n := copy(p, r.buf[r.r:r.w])
		r.r += n
		return n, nil
	}
	return r.read(p)
}

// full reads exactly len(p) bytes, directly into p after the buffered ones.
func (r *reader) full(p []byte) error {
	n := copy(p, r.buf[r.r:r.w])
	r.r += n
	for n < len(p) {
		m, err := r.read(p[n:])
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		n += m
	}
	return nil
}

// someUntil reads at least one byte into p, which is not empty. It returns 0 without an error when
// stop is set; the connection's reads must then be interrupted.
func (r *reader) someUntil(p []byte, stop *atomic.Bool) (int, error) {
	if n := copy(p, r.buf[r.r:r.w]); n > 0 {
		r.r += n
		return n, nil
	}
	if stop.Load() {
		return 0, nil
	}
	n, err := r.read(p)
	switch {
	case err == nil:
		return n, nil
	case stop.Load() && errors.Is(err, os.ErrDeadlineExceeded):
		return 0, nil
	case err == io.EOF:
		return 0, io.ErrUnexpectedEOF
	}
	return 0, err
}

// header reads the next frame's header.
func (r *reader) header(h *header) error {
	if err := r.fill(8); err != nil {
		return err
	}
	n, err := headerSize(r.buf[r.r:r.w])
	if err != nil {
		return err
	}
	if err := r.fill(n); err != nil {
		return err
	}
	err = h.decode(r.buf[r.r : r.r+n])
	r.r += n
	return err
}

// message reads the message after header h into a buffer that the caller releases,
// and verifies its CRC.
func (r *reader) message(h *header) (*buffer, error) {
	b := getBuffer(int(h.messageLen))
	if err := r.full(b.b); err != nil {
		b.release()
		return nil, err
	}
	if got := crc.Sum(b.b); got != h.messageCRC {
		b.release()
		return nil, badFrame("message checksum mismatch: CRC is %08x, not %08x", got, h.messageCRC)
	}
	return b, nil
}

// never is a stop that nothing sets.
var never atomic.Bool

// payload reads len(dst) bytes into dst, and passes them to each (if not nil).
func (r *reader) payload(dst []byte, each func([]byte)) error {
	if each == nil {
		return r.full(dst)
	}
	_, err := r.payloadUntil(dst, each, &never)
	return err
}

// payloadUntil is payload that stops early, without an error, when stop is set. It returns how much
// it read. It passes to each what one read returned, in whole blocks: larger pieces would leave the
// processor's cache while the reader waits for their rest.
func (r *reader) payloadUntil(dst []byte, each func([]byte), stop *atomic.Bool) (int, error) {
	got, passed := 0, 0
	for got < len(dst) {
		n, err := r.someUntil(dst[got:min(got+pieceSize, len(dst))], stop)
		if err != nil || n == 0 {
			return got, err
		}
		got += n
		whole := got
		if got < len(dst) {
			whole = got / moraine.BlockSize * moraine.BlockSize
		}
		if each != nil && whole > passed {
			each(dst[passed:whole])
			passed = whole
		}
	}
	return got, nil
}

// discard reads n bytes and drops them.
func (r *reader) discard(n int) error {
	have := min(n, r.w-r.r)
	r.r += have
	if n -= have; n == 0 {
		return nil
	}
	scratch := getBuffer(min(n, pieceSize))
	defer scratch.release()
	for n > 0 {
		m := min(n, len(scratch.b))
		if err := r.full(scratch.b[:m]); err != nil {
			return err
		}
		n -= m
	}
	return nil
}

// lost turns the end of a connection into the error of its requests.
func lost(ref string, err error) error {
	var e *moraine.Error
	if errors.As(err, &e) && e.Kind != moraine.Corrupt {
		return err
	}
	if err == io.EOF {
		err = errors.New("peer closed the connection")
	}
	return &moraine.Error{Op: "transport", Ref: ref, Kind: moraine.Unavailable, Err: err}
}
