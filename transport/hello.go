package transport

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"net"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
	"google.golang.org/protobuf/proto"
)

// maxHello limits the messages of a handshake, which come from unauthenticated
// peers.
const maxHello = 64 << 10

const nonceLen = 16

// The sentences at the beginning of proofs. They differ, so that neither end's
// proof can be replayed to it as the other's.
const (
	proofOfServer = "moraine server"
	proofOfClient = "moraine client"
)

// proof proves knowledge of key to the end that chose nonce, and covers the whole
// hello.
func proof(key []byte, sentence string, hello, nonce []byte) []byte {
	sum := sha256.Sum256(hello)
	m := hmac.New(sha256.New, key)
	m.Write([]byte(sentence))
	m.Write(sum[:])
	m.Write(nonce)
	return m.Sum(nil)
}

// writeHello sends one frame of a handshake and returns the bytes of its message.
func writeHello(s stream, f flags, id uint64, m proto.Message) ([]byte, error) {
	b, err := encodeFrame(&header{class: Control, kind: KindHello, flags: f, id: id}, m)
	if err != nil {
		return nil, err
	}
	defer b.release()
	message := append([]byte(nil), b.b[headerLen:]...)
	vec := net.Buffers{b.b}
	return message, s.writeVec(&vec)
}

// readHello reads one frame of a handshake into m, and returns the bytes of the
// message. If the frame holds an error, readHello returns that.
func readHello(r *reader, want flags, m proto.Message) ([]byte, error) {
	var h header
	if err := r.header(&h); err != nil {
		return nil, err
	}
	if h.kind != KindHello || h.flags&^flagError != want || h.payloadLen != 0 || h.messageLen > maxHello {
		return nil, badFrame("frame of kind %d, flags %x and %d bytes instead of a hello", h.kind, h.flags, h.messageLen)
	}
	b, err := r.message(&h)
	if err != nil {
		return nil, err
	}
	defer b.release()
	if h.flags&flagError != 0 {
		var e wire.Error
		if err := proto.Unmarshal(b.b, &e); err != nil {
			return nil, badFrame("unreadable error: %w", err)
		}
		return nil, &refusedError{ErrorFromWire(&e)}
	}
	if err := proto.Unmarshal(b.b, m); err != nil {
		return nil, badFrame("unreadable hello: %w", err)
	}
	return append([]byte(nil), b.b...), nil
}

// refusedError is the other end's refusal of a hello.
type refusedError struct{ error }

func (e *refusedError) Unwrap() error { return e.error }

// chooseVersion returns the newest frame version that both ends support.
func chooseVersion(h *wire.Hello) (uint32, error) {
	if h.MinVersion > frameVersion || h.MaxVersion < frameVersion {
		return 0, &moraine.Error{Op: "transport.hello", Kind: moraine.Unimplemented,
			Err: fmt.Errorf("caller supports frame versions %d to %d, this server %d", h.MinVersion, h.MaxVersion, frameVersion)}
	}
	return frameVersion, nil
}

func uuidOf(p []byte) (moraine.UUID, error) {
	var u moraine.UUID
	if len(p) != 0 && len(p) != len(u) {
		return u, badFrame("cluster id of %d bytes", len(p))
	}
	copy(u[:], p)
	return u, nil
}

// uuidBytes is nil for the zero UUID.
func uuidBytes(u moraine.UUID) []byte {
	if u.IsZero() {
		return nil
	}
	return u[:]
}
