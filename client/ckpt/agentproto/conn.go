package agentproto

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/morainefs/moraine"
	"golang.org/x/sys/unix"
)

// maxFiles bounds the descriptors of one message.
const maxFiles = 4

// Conn sends and receives frames. One goroutine may use it at a time.
type Conn struct{ c *net.UnixConn }

// NewConn wraps a connection, which the Conn owns.
func NewConn(c *net.UnixConn) *Conn { return &Conn{c} }

// Dial connects to the agent at a socket and says hello.
func Dial(ctx context.Context, socket string) (*Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, broken{&moraine.Error{Op: "agent", Ref: socket, Kind: moraine.Unavailable,
			Err: fmt.Errorf("no agent answers (%w): start one on this node with `moraine agent`", err)}}
	}
	conn := NewConn(c.(*net.UnixConn))
	if _, _, err := conn.Exchange(ctx, &Request{Hello: &Hello{Version: Version}}); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// broken marks an error after which a connection cannot be used, or never could.
type broken struct{ error }

func (e broken) Unwrap() error { return e.error }

// Broken reports whether an error of Dial or Exchange says that the agent was not there, or went
// before it answered. Whether the request took effect is then unknown.
func Broken(err error) bool {
	var b broken
	return errors.As(err, &b)
}

// Exchange sends a request and receives its reply. It returns the reply's error as an error, and
// the descriptors that came, which the caller closes. When ctx ends first the connection is closed.
func (c *Conn) Exchange(ctx context.Context, req *Request) (*Reply, []*os.File, error) {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	err := c.Send(req)
	var reply Reply
	var files []*os.File
	if err == nil {
		files, err = c.Receive(&reply)
	}
	switch {
	case ctx.Err() != nil:
		closeAll(files)
		return nil, nil, broken{ctx.Err()}
	case err == nil:
		return &reply, files, reply.Err()
	case errors.Is(err, moraine.TooLarge):
		return nil, nil, err
	}
	return nil, nil, broken{&moraine.Error{Op: "agent", Kind: moraine.Unavailable, Err: fmt.Errorf("the agent went before it answered: %w", err)}}
}

// Ask makes one request on a connection of its own. Its reply brings no descriptors.
func Ask(ctx context.Context, socket string, req *Request) (*Reply, error) {
	conn, err := Dial(ctx, socket)
	if err != nil {
		return nil, err
	}
	reply, files, err := conn.Exchange(ctx, req)
	closeAll(files)
	_ = conn.Close() // the reply is there, or its error
	return reply, err
}

// AwaitHangup blocks until the peer closes the connection, and returns true; or until StopAwait, or
// the peer sends something, and returns false. It reads nothing.
func (c *Conn) AwaitHangup() (ended bool) {
	raw, err := c.c.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			return false
		}
		ended = err != nil || n == 0
		return true
	})
	return ended || errors.Is(err, net.ErrClosed)
}

// StopAwait ends AwaitHangup, and waits until ended is closed. It clears the deadline for reads.
func (c *Conn) StopAwait(ended <-chan struct{}) {
	_ = c.c.SetReadDeadline(time.Unix(1, 0)) // it fails if the connection is closed, which ends AwaitHangup
	<-ended
	_ = c.c.SetReadDeadline(time.Time{})
}

// Close closes the connection.
func (c *Conn) Close() error { return c.c.Close() }

// Send sends one message, with the descriptors of files.
func (c *Conn) Send(msg any, files ...*os.File) error {
	body, err := json.Marshal(msg)
	if err != nil {
		return err
	}
	if len(body) > MaxFrame {
		return &moraine.Error{Op: "agent", Kind: moraine.TooLarge, Err: fmt.Errorf("a message of %d bytes; %d at most", len(body), MaxFrame)}
	}
	frame := binary.LittleEndian.AppendUint32(make([]byte, 0, 4+len(body)), uint32(len(body)))
	frame = append(frame, body...)
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		n, _, err := c.c.WriteMsgUnix(frame, unix.UnixRights(fds...), nil)
		if err != nil {
			return err
		}
		frame = frame[n:]
	}
	_, err = c.c.Write(frame)
	return err
}

// Receive receives one message into msg. It returns the descriptors that came with it, which
// the caller closes; none if it fails. It fails with InvalidArgument if a whole frame is no such
// message: the next frame can then be received.
func (c *Conn) Receive(msg any) (files []*os.File, err error) {
	return c.ReceiveWithin(msg, FrameBounds{Bytes: MaxFrame})
}

// ReceiveWithin is Receive of a frame within bounds: one beyond them is an error.
func (c *Conn) ReceiveWithin(msg any, most FrameBounds) (files []*os.File, err error) {
	defer func() {
		if err != nil {
			closeAll(files)
			files = nil
		}
	}()
	var head [4]byte
	oob := make([]byte, unix.CmsgSpace(4*maxFiles))
	n, oobn, _, _, err := c.c.ReadMsgUnix(head[:], oob)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, io.EOF
	}
	if files, err = parseRights(oob[:oobn]); err != nil {
		return files, err
	}
	if most.Patience > 0 {
		_ = c.c.SetReadDeadline(time.Now().Add(most.Patience)) // it fails if the connection is closed, as the read does
		defer func() { _ = c.c.SetReadDeadline(time.Time{}) }()
	}
	if _, err := io.ReadFull(c.c, head[n:]); err != nil {
		return files, err
	}
	size := binary.LittleEndian.Uint32(head[:])
	if size > most.Bytes {
		return files, fmt.Errorf("a frame of %d bytes; %d at most", size, most.Bytes)
	}
	if err := most.admit(c.c, size); err != nil {
		return files, err
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(c.c, body); err != nil {
		return files, err
	}
	if err = most.check(body); err == nil {
		err = json.Unmarshal(body, msg)
	}
	if err != nil {
		return files, &moraine.Error{Op: "agent", Kind: moraine.InvalidArgument, Err: err}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // only read through a mapping, or never used
	}
}

// parseRights returns the descriptors in a control message.
func parseRights(oob []byte) (files []*os.File, err error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "slot"))
		}
	}
	return files, nil
}
