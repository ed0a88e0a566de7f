package versity

import (
	"io"
	"net"
	"time"

	"github.com/valyala/fasthttp"
)

// An endpoint often knows its answer before the body has come: a wrong signature, a header
// that it refuses, too many requests. A connection that is closed with unread bytes is
// reset, and the reset takes the answer with it: the client then sees a broken connection
// and tries again, where it should read why it was refused. The library reads on for 256
// KiB, less than any part of an upload.

const (
	// drainBytes is how much of a body that nobody wants is read on. The parts of the usual
	// clients are 5 to 64 MiB.
	drainBytes = 64 << 20
	// drainIdle is how long the client may send nothing meanwhile, drainTime how long all
	// of it may take.
	drainIdle, drainTime = time.Second, 10 * time.Second
)

// draining returns a handler that calls h and then reads what h left of the body.
func draining(h fasthttp.RequestHandler) fasthttp.RequestHandler {
	return func(rc *fasthttp.RequestCtx) {
		h(rc)
		// The library has already read a body without a length, or says that it has one that
		// it cannot read on: its end could be passed unnoticed.
		if body := rc.RequestBodyStream(); body != nil && rc.Request.Header.ContentLength() > 0 {
			drain(rc.Conn(), body)
		}
	}
}

// drain reads body to its end, or as far as the bounds allow. The connection has the
// bounds of its next request afterwards, which the server sets.
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
