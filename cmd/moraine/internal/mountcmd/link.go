package mountcmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"golang.org/x/sys/unix"
)

// A supervisor and its daemon have a socket between them, with a message in each packet.

// verb says what a message is about.
type verb string

// What a daemon says, and what its supervisor says.
const (
	// prepared: the daemon could serve. It waits for begin, and has done nothing yet.
	prepared verb = "prepared"
	// ready: it serves.
	ready verb = "ready"
	// drained: what was written is committed, and it ends now. busy: it could not, and goes on.
	drained verb = "drained"
	busy    verb = "busy"
	// ended: the mount has ended, or the daemon could not begin.
	ended verb = "ended"

	// begin: the daemon before has ended.
	begin verb = "begin"
	// drain: make way for the next daemon.
	drain verb = "drain"
	// stop: unmount.
	stop verb = "stop"
)

// message is one packet.
type message struct {
	Verb verb `json:"verb"`
	// Error is why, Kind its kind, and WrongUse that the command line is wrong.
	Error    string       `json:"error,omitempty"`
	Kind     moraine.Kind `json:"kind,omitempty"`
	WrongUse bool         `json:"wrong_use,omitempty"`
	// Disconnected says that the error is only that files were still open.
	Disconnected bool `json:"disconnected,omitempty"`
}

// failure is a message about an error, or about none.
func failure(v verb, err error) message {
	if err == nil {
		return message{Verb: v}
	}
	return message{Verb: v, Error: strings.Join(cli.ErrorLines(err), "; "), Kind: moraine.KindOf(err), WrongUse: cli.IsWrongUse(err), Disconnected: onlyBusy(err)}
}

// err returns the error of a message; nil: none.
func (m message) err() error {
	switch {
	case m.Error == "":
		return nil
	case m.WrongUse:
		return cli.UsageError("%s", m.Error)
	case m.Disconnected:
		return &moraine.Error{Kind: moraine.Busy, Err: errors.New(m.Error)}
	case m.Kind == moraine.Busy:
		return errors.New(m.Error)
	}
	return &moraine.Error{Kind: m.Kind, Err: errors.New(m.Error)}
}

// link is one end of the socket.
type link struct{ conn *net.UnixConn }

// newLink makes the two ends.
func newLink() (own *link, other *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	other = os.NewFile(uintptr(fds[1]), "link")
	if own, err = linkOf(os.NewFile(uintptr(fds[0]), "link")); err != nil {
		return nil, nil, errors.Join(err, other.Close())
	}
	return own, other, nil
}

// linkOf takes a file.
func linkOf(f *os.File) (*link, error) {
	c, err := net.FileConn(f)
	conn, ok := c.(*net.UnixConn)
	if err == nil && !ok {
		err = fmt.Errorf("%s is no local socket", f.Name())
	}
	return &link{conn}, errors.Join(err, f.Close())
}

// stopReceiving has receive fail once it has returned what was sent before.
func (l *link) stopReceiving() error { return l.conn.CloseRead() }

func (l *link) send(m message) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(b) > maxMessage {
		m.Error = m.Error[:maxMessage/4] // of a very long text
		return l.send(m)
	}
	_, err = l.conn.Write(b)
	return err
}

// receive returns the next message, or an error when the other process has ended.
func (l *link) receive() (m message, err error) {
	b := make([]byte, maxMessage)
	n, err := l.conn.Read(b)
	if err != nil {
		return m, err
	}
	return m, json.Unmarshal(b[:n], &m)
}

const maxMessage = 64 << 10
