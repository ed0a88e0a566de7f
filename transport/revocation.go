package transport

import (
	"hash/fnv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine/transport/pki"
	"github.com/morainefs/moraine/transport/wire"
)

// Revocations is a list of certificates that are no longer accepted. It never
// changes, and may be used concurrently; nil is an empty one.
type Revocations struct {
	list    []*wire.Revocation
	version uint64
	keys    map[pki.KeyID]bool
	serials map[string]bool
	nodes   map[string][]*wire.Revocation
}

// NewRevocations returns the list of all. It keeps all, which must not change.
func NewRevocations(all []*wire.Revocation) *Revocations {
	r := &Revocations{list: all, keys: map[pki.KeyID]bool{}, serials: map[string]bool{}, nodes: map[string][]*wire.Revocation{}}
	sum := fnv.New64a()
	for _, w := range all {
		switch {
		case len(w.Key) == len(pki.KeyID{}):
			r.keys[pki.KeyID(w.Key)] = true
		case w.Serial != "":
			r.serials[w.Serial] = true
		case w.Node != "":
			r.nodes[w.Node] = append(r.nodes[w.Node], w)
		}
		b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(w) // plain fields only: it cannot fail
		sum.Write(b)
		sum.Write([]byte{0})
	}
	if len(all) > 0 {
		r.version = sum.Sum64() | 1
	}
	return r
}

// Version distinguishes lists; it is 0 for an empty one.
func (r *Revocations) Version() uint64 {
	if r == nil {
		return 0
	}
	return r.version
}

// List returns the argument of NewRevocations.
func (r *Revocations) List() []*wire.Revocation {
	if r == nil {
		return nil
	}
	return r.list
}

// Servers returns the entries that may match a server's certificate: all that a
// client needs. It has no names of users.
func (r *Revocations) Servers() *Revocations {
	var some []*wire.Revocation
	for _, w := range r.List() {
		if w.Role == "" || pki.Role(w.Role).Server() {
			some = append(some, w)
		}
	}
	return NewRevocations(some)
}

// Has reports whether the certificate of p was revoked. That is by its key, by
// its serial number, or with all of its node issued up to some time. A peer
// without a certificate is never on the list.
func (r *Revocations) Has(p *Peer) bool {
	if r.Version() == 0 || p == nil || p.Key.IsZero() {
		return false
	}
	if r.keys[p.Key] || r.serials[p.Serial] {
		return true
	}
	for _, w := range r.nodes[p.Node] {
		if (w.Role == "" || w.Role == string(p.Role)) && !p.Issued.After(time.Unix(w.IssuedUntil, 0)) {
			return true
		}
	}
	return false
}

// HasHost reports whether a certificate of the chunkserver node was revoked.
func (r *Revocations) HasHost(node string) bool {
	for _, w := range r.List() {
		if w.Node == node && (w.Role == "" || w.Role == string(RoleChunkserver)) {
			return true
		}
	}
	return false
}
