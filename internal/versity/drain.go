package versity

import (
	"io"
	"net"
	"time"

	"github.com/valyala/fasthttp"
)

// An endpoint often knows its answer before the body has arrived: a wrong
// signature, a refused header, too many requests. If it closes a connection with
// unread bytes, the kernel resets it, and the reset destroys the answer. The client
// then sees a broken connection and retries, instead of reading why it was refused.
// The library itself reads on for only 256 KiB, less than any part of an upload.

const (
	// drainBytes is how much of an unwanted body is read. The parts of the usual
	// clients are 5 to 64 MiB.
	drainBytes = 64 << 20
	// drainIdle is how long the client may send nothing meanwhile, drainTime how
	// long the whole drain may take.
	drainIdle, drainTime = time.Second, 10 * time.Second
)

// draining returns a handler that calls h and then reads what h left of the body.
func draining(h fasthttp.RequestHandler) fasthttp.RequestHandler {
	return func(rc *fasthttp.RequestCtx) {
		h(rc)
		// The library has already read a body without a length, or reports a length
		// past which it cannot read: its end could go unnoticed.
		if body := rc.RequestBodyStream(); body != nil && rc.Request.Header.ContentLength() > 0 {
			drain(rc.Conn(), body)
		}
	}
}

// drain reads body to its end, or as far as the limits allow. The server then sets
// the connection's deadlines for its next request.
func drain(conn net.Conn, body io.Reader) {
	end := time.Now().Add(drainTime)
	p := make([]byte, 64<<10)
	for left := drainBytes; left > 0; {
		until := time.Now().Add(drainIdle)
		if until.After(end) {
			until = end
		}
		if conn.SetReadDeadline(until) != nil {
			return
		}
		n, err := body.Read(p)
		left -= n
		if err != nil {
			return
		}
	}
}
