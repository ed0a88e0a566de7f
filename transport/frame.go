package transport

import (
	"encoding/binary"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
)

// docs/formats/frame.md describes the bytes of a frame. All numbers are
// little-endian.
const (
	frameMagic   = "MRNE"
	frameVersion = 1
	// headerLen is the length that this version writes. A later version may write
	// more, up to maxHeaderLen, between the fields known here and the CRC at the
	// end.
	headerLen    = 64
	maxHeaderLen = 256

	// MaxMessage limits a protobuf message, in bytes.
	MaxMessage = 16 << 20
	// MaxPayload limits a payload: the largest chunk and a block, in bytes.
	MaxPayload = moraine.MaxChunkSize + moraine.BlockSize
)

// flags of a frame. A receiver ignores unknown bits.
type flags uint16

const (
	flagReply  flags = 1 << 0 // answers the request of the same id
	flagError  flags = 1 << 1 // with flagReply: the message is a wire.Error
	flagCancel flags = 1 << 2 // the caller no longer waits for the request of this id; it has no reply
	flagGoAway flags = 1 << 3 // the server accepts no further request on this connection
)

// header is what precedes message and payload.
type header struct {
	version     uint8
	class       Class
	kind        Kind
	flags       flags
	deadline    uint32 // milliseconds that the caller still waits; 0: no request, or no deadline
	id          uint64 // of the request; the caller chooses it, unique on its connection
	trace       moraine.UUID
	incarnation uint64 // of the metadata, as agreed in the hello; 0: unknown
	messageLen  uint32
	payloadLen  uint32
	messageCRC  uint32 // CRC32C of the message
}

// encode writes h into p[:headerLen].
func (h *header) encode(p []byte) {
	_ = p[headerLen-1]
	copy(p, frameMagic)
	p[4] = h.version
	p[5] = byte(h.class)
	binary.LittleEndian.PutUint16(p[6:], headerLen)
	binary.LittleEndian.PutUint16(p[8:], uint16(h.kind))
	binary.LittleEndian.PutUint16(p[10:], uint16(h.flags))
	binary.LittleEndian.PutUint32(p[12:], h.deadline)
	binary.LittleEndian.PutUint64(p[16:], h.id)
	copy(p[24:40], h.trace[:])
	binary.LittleEndian.PutUint64(p[40:], h.incarnation)
	binary.LittleEndian.PutUint32(p[48:], h.messageLen)
	binary.LittleEndian.PutUint32(p[52:], h.payloadLen)
	binary.LittleEndian.PutUint32(p[56:], h.messageCRC)
	binary.LittleEndian.PutUint32(p[60:], crc.Sum(p[:60]))
}

// headerSize returns the length of the header that begins with p. p must have at
// least its first 8 bytes.
func headerSize(p []byte) (int, error) {
	if string(p[:4]) != frameMagic {
		return 0, badFrame("frame begins with %q, not %q", p[:4], frameMagic)
	}
	n := int(binary.LittleEndian.Uint16(p[6:]))
	if n < headerLen || n > maxHeaderLen {
		return 0, badFrame("invalid header length of %d bytes", n)
	}
	return n, nil
}

// decode decodes a header from p, whose length must be the result of headerSize. On
// error h is undefined.
func (h *header) decode(p []byte) error {
	n, err := headerSize(p)
	if err != nil {
		return err
	}
	if len(p) != n {
		return badFrame("%d bytes of a header of %d", len(p), n)
	}
	if got, want := crc.Sum(p[:n-4]), binary.LittleEndian.Uint32(p[n-4:]); got != want {
		return badFrame("header checksum mismatch: CRC is %08x, not %08x", got, want)
	}
	h.version = p[4]
	h.class = Class(p[5])
	h.kind = Kind(binary.LittleEndian.Uint16(p[8:]))
	h.flags = flags(binary.LittleEndian.Uint16(p[10:]))
	h.deadline = binary.LittleEndian.Uint32(p[12:])
	h.id = binary.LittleEndian.Uint64(p[16:])
	copy(h.trace[:], p[24:40])
	h.incarnation = binary.LittleEndian.Uint64(p[40:])
	h.messageLen = binary.LittleEndian.Uint32(p[48:])
	h.payloadLen = binary.LittleEndian.Uint32(p[52:])
	h.messageCRC = binary.LittleEndian.Uint32(p[56:])
	switch {
	case h.version != frameVersion:
		return badFrame("frame version %d, but this connection uses %d", h.version, frameVersion)
	case h.messageLen > MaxMessage:
		return badFrame("message of %d bytes is too large", h.messageLen)
	case h.payloadLen > MaxPayload:
		return badFrame("payload of %d bytes is too large", h.payloadLen)
	}
	return nil
}

func badFrame(format string, args ...any) error {
	return &moraine.Error{Op: "transport.frame", Kind: moraine.Corrupt, Err: fmt.Errorf(format, args...)}
}
