package fleet

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// certificates has the expiry times of the certificates that servers have shown the leader: hosts
// with their heartbeats, metadata servers with their beats. Those of gateways are with their
// sessions.
type certificates struct {
	mu    sync.Mutex // guards the following fields
	shown map[server]shown
}

type shown struct {
	expires, at time.Time
}

// maxCertificates bounds the remembered certificates; no cluster has more servers.
const maxCertificates = 64 << 10

func newCertificates() *certificates { return &certificates{shown: make(map[server]shown)} }

// Saw records the certificate of a connection; peer is nil if there is none.
func (c *certificates) Saw(peer *transport.Peer, now time.Time) {
	if peer == nil || peer.NotAfter.IsZero() {
		return
	}
	name := server{peer.Role, peer.Node}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.shown[name]; known || len(c.shown) < maxCertificates {
		c.shown[name] = shown{peer.NotAfter, now}
	}
}

// of returns when the certificate of a server that is up expires, if known.
func (c *certificates) of(name server) (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.shown[name]
	return s.expires, ok
}

// CertificatesNow lists the known certificates of servers that are up, and the expired ones of
// servers that are not, since that may be the cause. whole says that the caller is not confined to
// a directory; only such callers see gateways.
func (f *Fleet) CertificatesNow(v *View, whole bool) (out []*wire.ServerCertificate) {
	now := f.Clock.Now()
	add := func(role transport.Role, node string, expires time.Time) {
		out = append(out, &wire.ServerCertificate{Role: string(role), Node: node, Expires: expires.Unix(), LeftSeconds: int64(expires.Sub(now) / time.Second)})
	}
	for _, m := range f.Store.Members() {
		switch at, ok := f.Certificates.of(server{transport.RoleMetadata, m.ID}); {
		case m.ID == f.Node && f.cfg.Expires != nil:
			add(transport.RoleMetadata, m.ID, f.cfg.Expires())
		case ok && (m.Alive || at.Before(now)):
			add(transport.RoleMetadata, m.ID, at)
		}
	}
	for _, h := range v.Wire.Hosts {
		if at, ok := f.Certificates.of(server{transport.RoleChunkserver, h.Id}); ok && (h.Alive || at.Before(now)) && !retired(h) {
			add(transport.RoleChunkserver, h.Id, at)
		}
	}
	if whole {
		for node, at := range f.leader.Gateways() {
			add(transport.RoleGateway, node, at)
		}
	}
	slices.SortFunc(out, func(a, b *wire.ServerCertificate) int {
		return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.Node, b.Node))
	})
	return out
}
