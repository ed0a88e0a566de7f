package transport

import (
	"bytes"
	"net"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
	"google.golang.org/protobuf/proto"
)

// Header is a frame's header as tests see it.
type Header struct {
	Class       Class
	Kind        Kind
	Flags       uint16
	Deadline    uint32
	ID          uint64
	Trace       moraine.UUID
	Incarnation uint64
	MessageLen  uint32
	PayloadLen  uint32
	MessageCRC  uint32
}

const HeaderLen = headerLen

// EncodeHeader returns the header's bytes.
func EncodeHeader(h Header) []byte {
	p := make([]byte, headerLen)
	(&header{frameVersion, h.Class, h.Kind, flags(h.Flags), h.Deadline, h.ID, h.Trace, h.Incarnation, h.MessageLen, h.PayloadLen, h.MessageCRC}).encode(p)
	return p
}

// DecodeHeader decodes a header, and returns the rest of p after it.
func DecodeHeader(p []byte) (Header, []byte, error) {
	r := newReader(bytes.NewReader(p), controlReadBuffer, func() int64 { return 0 })
	var h header
	if err := r.header(&h); err != nil {
		return Header{}, nil, err
	}
	n := len(p) - len(r.buf[r.r:r.w])
	return Header{h.class, h.kind, uint16(h.flags), h.deadline, h.id, h.trace, h.incarnation, h.messageLen, h.payloadLen, h.messageCRC}, p[min(n, len(p)):], nil
}

// EncodeFrame returns a frame without a payload.
func EncodeFrame(h Header, m proto.Message) []byte {
	b, err := encodeFrame(&header{frameVersion, h.Class, h.Kind, flags(h.Flags), h.Deadline, h.ID, h.Trace, h.Incarnation, 0, h.PayloadLen, 0}, m)
	if err != nil {
		panic(err)
	}
	return b.b
}

// ReadFrames reads frames from p into dst, as a connection would, until they end or
// one is bad. It returns how many were whole.
func ReadFrames(p []byte, dst []byte) (n int, err error) {
	r := newReader(bytes.NewReader(p), bulkReadBuffer, func() int64 { return 0 })
	for {
		var h header
		if err := r.header(&h); err != nil {
			return n, err
		}
		m, err := r.message(&h)
		if err != nil {
			return n, err
		}
		m.release()
		if int(h.payloadLen) > len(dst) {
			err = r.discard(int(h.payloadLen))
		} else {
			err = r.payload(dst[:h.payloadLen], nil)
		}
		if err != nil {
			return n, err
		}
		n++
	}
}

// RawHello sends h on nc and returns the answer.
func RawHello(nc net.Conn, h *wire.Hello) (*wire.HelloReply, error) {
	nc.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := nc.Write(EncodeFrame(Header{Class: Control, Kind: KindHello, ID: 1}, h)); err != nil {
		return nil, err
	}
	return RawReply(nc)
}

// RawReply reads the answer to a hello.
func RawReply(nc net.Conn) (*wire.HelloReply, error) {
	r := newReader(nc, headerLen, func() int64 { return 0 }) // reads no further than a header
	reply := new(wire.HelloReply)
	_, err := readHello(r, flagReply, reply)
	return reply, err
}

// ReadHello reads a hello as a server does.
func ReadHello(p []byte, h *wire.Hello) error {
	_, err := readHello(newReader(bytes.NewReader(p), controlReadBuffer, func() int64 { return 0 }), 0, h)
	return err
}

// Caller returns the caller that p's clients use.
func (p *Pool) Caller(role Role, node string, addrs []string) Caller {
	return p.peer(role, node, addrs)
}

// Shown reports whether every open bulk connection has presented the current token.
func (p *Pool) Shown() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pr := range p.peers {
		for _, c := range pr.open(Bulk) {
			if !p.isShown(c) {
				return false
			}
		}
	}
	return true
}

// ReportTraffic returns a function that reports how much a connection has sent so
// far, for concurrent use.
func ReportTraffic(m *Metrics) func(sent uint64) {
	t := &traffic{}
	return func(sent uint64) { t.report(m, sideServer, Bulk, sent, sent) }
}

// Kinds returns all kinds of requests that a server decodes, each with an empty
// message.
func Kinds() map[Kind]proto.Message {
	kinds := map[Kind]proto.Message{}
	for k := range Kind(1 << 15) {
		if m := newMessage(k); m != nil {
			kinds[k] = m
		}
	}
	return kinds
}

// SetMaxKeys limits the keys of connections that a server in mode crc keeps.
func SetMaxKeys(s *Server, n int) { s.keys = newKeyTable(n) }

// KeysOf returns the ids of the keys that a server keeps of a node.
func KeysOf(s *Server, node string) (ids []string) {
	s.keys.mu.Lock()
	defer s.keys.mu.Unlock()
	for id, k := range s.keys.keys {
		if k.peer.Node == node {
			ids = append(ids, id)
		}
	}
	return ids
}
