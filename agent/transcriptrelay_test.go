package agent_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// relay is between a trainer and the agent. It compares all that goes through it with a dialogue.
type relay struct {
	n        *node
	d        dialogue
	listener *net.UnixListener
	running  sync.WaitGroup

	mu    sync.Mutex
	next  int // event
	b     bindings
	slots map[string]*os.File
	errs  []error
	// closed are the connections that the trainer has closed, closes those that it had to close.
	closed, closes map[string]bool
}

// relayOf starts a relay at a socket.
func (n *node) relayOf(d dialogue, socket string) *relay {
	n.t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	require.NoError(n.t, err)
	r := &relay{n: n, d: d, listener: l, b: bindings{}, slots: map[string]*os.File{}, closed: map[string]bool{}, closes: map[string]bool{}}
	r.running.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			r.running.Go(func() { r.serve(c) })
		}
	})
	return r
}

// serve passes the frames of one connection on, a request and its reply at a time.
func (r *relay) serve(c *net.UnixConn) {
	defer c.Close()
	name := r.saw("", "connects", nil, nil)
	to, err := net.Dial("unix", r.n.socket())
	if err != nil {
		r.fail(err)
		return
	}
	defer to.Close()
	for {
		for _, hop := range []struct {
			kind     string
			from, to *net.UnixConn
		}{{">", c, to.(*net.UnixConn)}, {"<", to.(*net.UnixConn), c}} {
			frame, files, err := readFrame(hop.from)
			if err != nil {
				r.mu.Lock()
				r.closed[name] = hop.kind == ">" && errors.Is(err, io.EOF)
				r.mu.Unlock()
				return
			}
			r.saw(name, hop.kind, frame, files)
			var rights []byte
			if len(files) == 1 {
				rights = unix.UnixRights(int(files[0].Fd()))
			}
			if _, _, err := hop.to.WriteMsgUnix(frame, rights, nil); err != nil {
				r.fail(err)
				return
			}
		}
	}
}

func (r *relay) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, err)
}

// saw compares what has happened with the next event of the dialogue. It returns the connection's name.
func (r *relay) saw(conn, kind string, frame []byte, files []*os.File) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.next < len(r.d.events) {
		e := r.d.events[r.next]
		switch e.kind {
		case "closes": // the agent sees it at any time from here on
			r.closes[e.conn] = true
		case "writes", "reads":
			got := make([]byte, len(e.data))
			if _, err := r.slots[e.conn].ReadAt(got, e.at); err != nil || string(got) != string(e.data) {
				r.errs = append(r.errs, fmt.Errorf("line %d: the slot has %x (%v)", e.line, got, err))
			}
		default:
			r.next++
			r.compare(e, conn, kind, frame, files)
			return e.conn
		}
		r.next++
	}
	r.errs = append(r.errs, fmt.Errorf("after the last event: %s %s %s", conn, kind, frame))
	return conn
}

// compare compares an event with what has happened. The caller holds the mutex.
func (r *relay) compare(e event, conn, kind string, frame []byte, files []*os.File) {
	for _, f := range files {
		r.slots[conn] = f
	}
	switch {
	case kind != e.kind || conn != e.conn && kind != "connects":
		r.errs = append(r.errs, fmt.Errorf("line %d: %s %s %s", e.line, conn, kind, frame))
	case kind != "connects":
		if err := e.check(r.b, frame, len(files)); err != nil {
			r.errs = append(r.errs, fmt.Errorf("line %d: %w", e.line, err))
		}
	}
}

// end waits until the trainer has closed its connections, and reports what differed.
func (r *relay) end() {
	r.n.t.Helper()
	_ = r.listener.Close() // nobody connects any more
	r.running.Wait()
	for _, f := range r.slots {
		_ = f.Close() // only read
	}
	for ; r.next < len(r.d.events); r.next++ {
		e := r.d.events[r.next]
		require.Equal(r.n.t, "closes", e.kind, "line %d did not happen", e.line)
		r.closes[e.conn] = true
	}
	require.Equal(r.n.t, r.closes, r.closed, "connections that the trainer closes")
	for _, err := range r.errs {
		r.n.t.Errorf("%s, %v", r.d.title, err)
	}
}

// TestTheRelayHasTeeth: a client that sends another frame than the dialogue has is noticed.
func TestTheRelayHasTeeth(t *testing.T) {
	e, err := parseEvent(`A > ........ 0 {"hello":{"version":{{v}}}}`)
	require.NoError(t, err)
	for _, c := range []struct {
		conn, kind, body string
		wrong            bool
	}{{"A", ">", `{"hello":{"version":1}}`, false}, {"B", ">", `{"hello":{"version":1}}`, true}, {"A", "<", `{"hello":{"version":1}}`, true},
		{"A", ">", `{"hello":{"version":1,"x":2}}`, true}} {
		r := &relay{d: dialogue{events: []event{e}}, b: bindings{}, slots: map[string]*os.File{}}
		r.saw(c.conn, c.kind, frameOf(c.body), nil)
		require.Equal(t, c.wrong, len(r.errs) > 0, "%+v", c)
		r.saw("A", ">", frameOf("{}"), nil)
		require.NotEmpty(t, r.errs, "one event too many")
	}
}
