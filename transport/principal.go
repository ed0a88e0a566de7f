package transport

import (
	"crypto/sha256"
	"encoding/binary"
)

// principalLen is the length of a principal, in bytes.
const principalLen = 16

// Principal identifies the peer's certificate: 16 bytes of a SHA-256 over its
// public key, role, node, scope, read-only and squash. A certificate that is
// renewed with its key keeps it. Sessions and tokens are bound to it. The caller
// must not change the result.
func (p *Peer) Principal() []byte {
	if p.principal != nil {
		return p.principal
	}
	return p.hash()
}

func (p *Peer) hash() []byte {
	b := make([]byte, 0, 256)
	b = append(b, "moraine principal\x00"...)
	b = append(b, p.Key[:]...)
	for _, s := range []string{string(p.Role), p.Node, p.Scope} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	for _, v := range []bool{p.ReadOnly, p.Squash} {
		if v {
			b = append(b, 1)
		} else {
			b = append(b, 0)
		}
	}
	sum := sha256.Sum256(b)
	return sum[:principalLen:principalLen]
}
