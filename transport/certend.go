package transport

import (
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/morainefs/moraine"
)

// A connection ends when a certificate that authenticated it ends. Each end checks
// every second or so whether its peer's certificate has expired, and the server
// also whether it was revoked. A caller leaves a connection earlier: as soon as its
// own certificate was replaced, or one of the two is about to expire. Running
// requests end on it, and the next ones use a new connection.

// leaveBefore is how long before the end of a certificate a caller leaves its
// connections.
const leaveBefore = 5 * time.Second

// refuses returns why peer may no longer have a connection, or nil if it may.
func (s *Server) refuses(peer *Peer) error {
	if end := peer.NotAfter; !end.IsZero() && s.clock.Now().After(end) {
		return &moraine.Error{Op: "transport", Ref: peer.Node, Kind: moraine.Unauthenticated,
			Err: fmt.Errorf("certificate of %s %s expired on %s: renew it with `moraine cert renew`", peer.Role, peer.Node, end.UTC().Format(time.RFC3339))}
	}
	if s.deps.Revoked != nil && s.deps.Revoked(peer) {
		return &moraine.Error{Op: "transport", Ref: peer.Node, Kind: moraine.Unauthenticated,
			Err: fmt.Errorf("the certificate of %s %s was revoked (`moraine cert revoke --list`): issue one with another key", peer.Role, peer.Node)}
	}
	return nil
}

// endRefused closes the connections of peers that may no longer have one.
func (s *Server) endRefused() {
	for _, c := range s.all() {
		if err := s.refuses(c.peer.Load()); err != nil {
			s.endConn(c, err)
		}
	}
	s.mu.Lock()
	var streams []*serverConn
	for c := range s.streams {
		streams = append(streams, c)
	}
	s.mu.Unlock()
	for _, c := range streams {
		if err := s.refuses(c.peer.Load()); err != nil {
			s.endConn(c, err)
		}
	}
}

func (s *Server) endConn(c *serverConn, err error) {
	s.log.Info("connection ended with its certificate", "addr", c.stream.RemoteAddr().String(), "class", c.class.String(), "err", err)
	if c.class == Raft {
		c.stream.Close() //nolint:errcheck // the log sees that it is gone
		return
	}
	c.close(err)
}

// trackStream registers a connection of class Raft while it is served.
func (s *Server) trackStream(c *serverConn) (untrack func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams[c] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.streams, c)
	}
}

// errCertEnded closes a connection whose certificates have expired.
var errCertEnded = errors.New("certificate of the connection expired")

// endsAt is when the first certificate of a connection expires; zero in mode insecure.
func endsAt(own *x509.Certificate, remote *Peer) time.Time {
	end := remote.NotAfter
	if own != nil && (end.IsZero() || own.NotAfter.Before(end)) {
		end = own.NotAfter
	}
	return end
}

// checkCert leaves the connection if the pool's certificate, current, is no longer
// the one that opened it, or if a certificate is about to expire. It closes the
// connection if one has expired.
func (c *clientConn) checkCert(current *x509.Certificate, now time.Time) {
	if c.own == nil {
		return
	}
	left := endsAt(c.own, &c.remote).Sub(now)
	switch {
	case left < 0:
		c.close(errCertEnded)
	case left < leaveBefore, c.own != current:
		c.leave()
	}
}

// leave stops new calls from using the connection.
func (c *clientConn) leave() {
	c.mu.Lock()
	c.goAway = true
	c.mu.Unlock()
}

// currentLeaf is the certificate for new connections; nil in mode insecure.
func (p *Pool) currentLeaf() *x509.Certificate {
	if p.id == nil || p.cfg.Mode == Insecure {
		return nil
	}
	cert, _, _ := p.id.Current()
	return cert.Leaf
}

// checkKey drops the key for unencrypted connections if it came from another
// certificate than the current one.
func (pr *peer) checkKey(current *x509.Certificate) {
	pr.mu.Lock()
	key := pr.shared
	pr.mu.Unlock()
	if key != nil && key.own != current {
		pr.dropKey(key)
	}
}
