package transport

import (
	"fmt"
	"sync"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"google.golang.org/protobuf/proto"
)

// Message buffers are pooled in these sizes. Larger ones are rare, and left to the
// garbage collector.
var bufferClasses = [...]int{1 << 10, 16 << 10, 256 << 10}

var bufferPools [len(bufferClasses)]sync.Pool

// buffer holds a header and message, or a message. It has one owner, which releases
// it once.
type buffer struct {
	b     []byte
	class int8 // index in bufferClasses, -1 for none
}

func getBuffer(n int) *buffer {
	for i, size := range bufferClasses {
		if n <= size {
			if v := bufferPools[i].Get(); v != nil {
				b := v.(*buffer)
				b.b = b.b[:n]
				return b
			}
			return &buffer{b: make([]byte, n, size), class: int8(i)}
		}
	}
	return &buffer{b: make([]byte, n), class: -1}
}

func (b *buffer) release() {
	if b.class >= 0 && cap(b.b) == bufferClasses[b.class] {
		bufferPools[b.class].Put(b)
	}
}

// encodeFrame returns h and m (nil: no message) as bytes. It fills in the version,
// the message's length and its CRC.
func encodeFrame(h *header, m proto.Message) (*buffer, error) {
	size := 0
	if m != nil {
		size = proto.Size(m)
	}
	if size > MaxMessage {
		return nil, &moraine.Error{Op: "transport.encode", Kind: moraine.TooLarge, Err: fmt.Errorf("message of %d bytes exceeds %d", size, MaxMessage)}
	}
	buf := getBuffer(headerLen + size)
	if m != nil {
		b, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(buf.b[:headerLen], m)
		if err != nil {
			buf.release()
			return nil, &moraine.Error{Op: "transport.encode", Kind: moraine.InvalidArgument, Err: err}
		}
		buf.b = b
	}
	h.version = frameVersion
	h.messageLen = uint32(len(buf.b) - headerLen)
	h.messageCRC = crc.Sum(buf.b[headerLen:])
	h.encode(buf.b)
	return buf, nil
}
