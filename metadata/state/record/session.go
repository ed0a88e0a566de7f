package record

import (
	"errors"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/statepb"
)

// Session is a client's registration. Its belongings have keys of their own, by session.
type Session struct {
	Id   moraine.SessionID
	Node string
	// Principal identifies the certificate that opened the session. No other certificate may use
	// it.
	Principal Principal
	Role      string
	Root      moraine.InodeID // directory to which it is confined and where its paths start
	Scope     string          // path of Root when the session was opened
	ReadOnly  bool
	Squash    bool
	Nonce     []byte
	Opened    uint64 // cluster time, milliseconds
	// AckedBelow: the client has received the answers of all lower numbers.
	AckedBelow uint64
	// Leases says that the session may have cache leases.
	Leases bool
	// Opens says that the session may have files open.
	Opens bool
	answers
}

const SessionVersion = 1

// Encode returns the stored value. It takes 73 ns, and 107 ns through a codec.
func (s *Session) Encode() []byte {
	b := make([]byte, 0, 96+len(s.Node)+len(s.Scope)+len(s.Answer))
	b = append(b, SessionVersion, 0, 0, 0, 0) // the length follows
	b = putUvarint(b, s.AckedBelow)
	b = putString(b, s.Node)
	b = putString(b, s.Role)
	b = putFixed64(b, uint64(s.Root))
	b = putString(b, s.Scope)
	b = putBool(b, s.ReadOnly)
	b = putBool(b, s.Squash)
	b = putBytes(b, s.Nonce)
	b = putUvarint(b, s.Opened)
	b = putUvarint(putUvarint(putBool(putBool(b, s.Leases), s.Opens), s.Number), s.Apart)
	if s.Principal != (Principal{}) {
		b = append(b, s.Principal[:]...)
	}
	return s.answers.Encode(b)
}

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (s *Session) Decode(b []byte) error {
	d := Dec{B: b}
	d.Version(SessionVersion)
	s.Answer = d.decodeAnswer(int(d.fixed32()))
	s.AckedBelow = d.Uvarint()
	s.Node = d.string()
	s.Role = d.string()
	s.Root = moraine.InodeID(d.Fixed64())
	s.Scope = d.string()
	s.ReadOnly = d.bool()
	s.Squash = d.bool()
	s.Nonce = d.bytes()
	s.Opened = d.Uvarint()
	s.Leases = d.bool()
	s.Opens = d.bool()
	s.Number, s.Apart = d.Uvarint(), d.Uvarint()
	if len(d.B) > 0 {
		if s.Principal = d.bytes16(); d.Err == nil && s.Principal == (Principal{}) {
			d.fail(errors.New("a principal that is zero is not written"))
		}
	}
	return d.End("session")
}

// Of reports whether the caller's certificate opened the session.
func (s *Session) Of(c *statepb.Caller) bool {
	return s.Node == c.GetNode() && s.Principal == PrincipalOf(c)
}

// Principal is the transport.Peer.Principal of a caller; zero if the request came over no
// connection.
type Principal [16]byte

// PrincipalOf returns the caller's principal.
func PrincipalOf(c *statepb.Caller) (p Principal) {
	copy(p[:], c.GetPrincipal())
	return p
}

// EncodeNonce returns the row of a nonce: the session that it opened.
func EncodeNonce(id moraine.SessionID) []byte { return EncodeID(SessionVersion, id) }

// DecodeNonce decodes the session that a nonce opened.
func DecodeNonce(b []byte) (moraine.SessionID, error) {
	return DecodeID[moraine.SessionID](SessionVersion, b, "session nonce")
}
