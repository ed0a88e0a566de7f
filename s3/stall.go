package s3

import (
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/versity/versitygw/s3err"

	"github.com/morainefs/moraine"
)

// transfer is the connection of a request whose body or answer may be long. It has
// no total time limit: a client may be slow, but must make progress. The zero value
// has no limits.
type transfer struct {
	conn     net.Conn
	patience time.Duration
	log      *slog.Logger
	metrics  *Metrics
}

// read reads a piece of the request's body.
func (t transfer) read(r io.Reader, p []byte) (int, error) {
	if t.conn == nil {
		return r.Read(p)
	}
	began := time.Now()
	_ = t.conn.SetReadDeadline(began.Add(t.patience)) // the read returns an error of the connection
	n, err := r.Read(p)
	// The library hides the error of the connection: it reports the end of the
	// body.
	if err != nil && t.stalled("request body", began) {
		return n, s3err.GetAPIError(s3err.ErrIncompleteBody)
	}
	return n, err
}

// sentPiece is how much of an answer must be sent within the patience.
const sentPiece = 1 << 20

// transferWriter writes an answer's body to its connection.
type transferWriter struct {
	transfer
	w io.Writer
}

// Write implements io.Writer.
func (t transferWriter) Write(p []byte) (n int, err error) {
	for first := true; err == nil && (first || len(p) > 0); first = false {
		piece := p[:min(len(p), sentPiece)]
		began := time.Now()
		if t.conn != nil {
			_ = t.conn.SetWriteDeadline(began.Add(t.patience)) // the write returns an error of the connection
		}
		var sent int
		sent, err = t.w.Write(piece)
		n, p = n+sent, p[len(piece):]
		if err != nil {
			t.stalled("answer", began)
		}
	}
	return n, err
}

// stalled reports whether a failed operation had waited for the client as long as
// it may, and logs and counts that.
func (t transfer) stalled(what string, began time.Time) bool {
	waited := time.Since(began)
	if t.conn == nil || waited < t.patience {
		return false
	}
	t.metrics.Errors.WithLabelValues(moraine.Timeout.String()).Inc()
	t.log.Warn("client stalled", "transfer", what, "waited", waited, "from", t.conn.RemoteAddr().String())
	return true
}
