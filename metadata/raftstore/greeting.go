package raftstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/morainefs/moraine"
)

// Both ends of a connection between nodes start with a greeting: their identity and their
// incarnation of the metadata. Nodes of different incarnations disconnect at once. The greeting is
// an envelope like those of small files, with magic MRNGREET. The dialing node greets first.
// docs/formats/frame.md describes it.
const (
	greetMagic   = "MRNGREET"
	greetVersion = 1
	// maxGreeting bounds the body, in bytes.
	maxGreeting = 1 << 10
	// sayAgain is how long a node does not log another refusal of the same node.
	sayAgain = 30 * time.Second
)

type greeting struct {
	cluster     moraine.UUID
	node        string
	incarnation moraine.MarkedIncarnation
}

func (g greeting) encode() []byte {
	body := append([]byte(nil), g.cluster[:]...)
	body = binary.LittleEndian.AppendUint64(body, uint64(g.incarnation.Number))
	body = append(body, g.incarnation.Mark[:]...)
	body = appendBytes(body, []byte(g.node))
	return seal(greetMagic, greetVersion, body)
}

func decodeGreeting(p []byte) (greeting, error) {
	body, err := unseal(greetMagic, greetVersion, p)
	if err != nil {
		return greeting{}, err
	}
	r := reader{p: body}
	var g greeting
	copy(g.cluster[:], r.take(len(g.cluster)))
	number := r.u64()
	g.incarnation.Number = moraine.Incarnation(number)
	copy(g.incarnation.Mark[:], r.take(len(g.incarnation.Mark)))
	g.node = string(r.bytes())
	if !r.done() || number > 255 {
		return greeting{}, corruptf("a greeting that does not parse")
	}
	return g, nil
}

func readGreeting(r io.Reader) (greeting, error) {
	p := make([]byte, envelopeHeader, envelopeHeader+64)
	if _, err := io.ReadFull(r, p); err != nil {
		return greeting{}, err
	}
	n := binary.LittleEndian.Uint32(p[12:])
	if n > maxGreeting {
		return greeting{}, corruptf("a greeting of %d bytes", n)
	}
	p = append(p, make([]byte, n+4)...)
	if _, err := io.ReadFull(r, p[envelopeHeader:]); err != nil {
		return greeting{}, err
	}
	return decodeGreeting(p)
}

// greeter exchanges greetings on a node's connections.
type greeter struct {
	self    func() greeting
	judge   func(greeting) error // returns nil if the node may communicate with the other one
	timeout time.Duration
}

// dialed exchanges greetings on a connection that this node opened.
func (g *greeter) dialed(conn net.Conn) error {
	return g.exchange(conn, func() error { _, err := conn.Write(g.self().encode()); return err }, nil)
}

// accepted exchanges greetings on a connection that another node opened. It answers before it
// judges, so that the other end learns this node's incarnation too.
func (g *greeter) accepted(conn net.Conn) error {
	return g.exchange(conn, nil, func() error { _, err := conn.Write(g.self().encode()); return err })
}

func (g *greeter) exchange(conn net.Conn, before, after func() error) error {
	// Use real time for the deadline, as raft does, not a test's clock.
	if err := conn.SetDeadline(time.Now().Add(g.timeout)); err != nil {
		return err
	}
	if before != nil {
		if err := before(); err != nil {
			return err
		}
	}
	other, err := readGreeting(conn)
	if err != nil {
		return fmt.Errorf("greeting: %w", err)
	}
	if after != nil {
		if err := after(); err != nil {
			return err
		}
	}
	if err := g.judge(other); err != nil {
		return err
	}
	return conn.SetDeadline(time.Time{})
}

// greetedConn is an accepted connection that exchanges greetings at its first read, so that Accept
// does not wait for it.
type greetedConn struct {
	net.Conn
	greet func() error
	once  sync.Once
	err   error
}

// Read implements net.Conn.
func (c *greetedConn) Read(p []byte) (int, error) {
	c.once.Do(func() {
		if c.err = c.greet(); c.err != nil {
			c.err = errors.Join(c.err, c.Conn.Close())
		}
	})
	if c.err != nil {
		return 0, c.err
	}
	return c.Conn.Read(p)
}
