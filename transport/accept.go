package transport

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/morainefs/moraine/transport/wire"
)

const tlsHandshakeByte = 0x16

// shake does the server's side of a handshake. The first byte distinguishes TLS
// from a frame.
func (s *Server) shake(ctx context.Context, nc net.Conn) (*serverConn, error) {
	tune(nc)
	if err := nc.SetDeadline(time.Now().Add(s.cfg.HandshakeTimeout)); err != nil {
		return nil, lost(nc.RemoteAddr().String(), err)
	}
	raw := newReader(nc, helloReadBuffer, s.now)
	if err := raw.fill(1); err != nil {
		return nil, lost(nc.RemoteAddr().String(), err)
	}
	isTLS := raw.buf[raw.r] == tlsHandshakeByte
	var c *serverConn
	var err error
	switch {
	case isTLS && s.cfg.Mode == Insecure:
		return nil, &moraine.Error{Op: "transport.hello", Ref: nc.RemoteAddr().String(), Kind: moraine.Unauthenticated,
			Err: errors.New("caller uses TLS, but this server runs in mode insecure")}
	case isTLS:
		c, err = s.shakeTLS(ctx, nc, raw)
	default:
		st := newPlainStream(nc)
		raw.src = st
		c, err = s.hello(ctx, st, raw, nil)
	}
	if err != nil {
		return nil, lost(nc.RemoteAddr().String(), err)
	}
	if err := nc.SetDeadline(time.Time{}); err != nil {
		c.leave()
		return nil, lost(nc.RemoteAddr().String(), err)
	}
	return c, nil
}

func (s *Server) shakeTLS(ctx context.Context, nc net.Conn, raw *reader) (*serverConn, error) {
	under := &sink{Conn: nc, in: raw}
	tc := tls.Server(under, serverTLS(s.deps.Identity))
	if err := tc.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	st := &tlsStream{Conn: tc, sink: under}
	cs := tc.ConnectionState()
	return s.hello(ctx, st, newReader(st, helloReadBuffer, s.now), &cs)
}

// hello answers a caller's hello, with an error if it is refused. cs is nil on an
// unencrypted connection.
func (s *Server) hello(ctx context.Context, st stream, r *reader, cs *tls.ConnectionState) (*serverConn, error) {
	h := new(wire.Hello)
	sent, err := readHello(r, 0, h)
	if err != nil {
		return nil, err
	}
	peer, reply, err := s.judge(st, r, h, sent, cs)
	var leave func()
	if err == nil {
		leave, err = s.takeShare(peer)
	}
	if err == nil {
		if err = s.giveKey(cs, peer, Class(h.Class), reply); err != nil {
			leave()
		}
	}
	if err != nil {
		writeHello(st, flagReply|flagError, 1, ErrorToWire(err)) //nolint:errcheck // it is refused in any case
		return nil, err
	}
	class := Class(h.Class)
	limit := s.cfg.MaxControl
	if class == Bulk {
		limit = s.cfg.MaxBulk
	}
	reply.MaxInFlight = uint32(limit)
	if _, err := writeHello(st, flagReply, 1, reply); err != nil {
		leave()
		return nil, err
	}
	r.resize(readBuffer(class))
	if t, ok := st.(*tlsStream); ok {
		t.fit(class)
	}
	c := newServerConn(ctx, s, class, st, r, peer, limit, reply.Incarnation)
	c.leave = leave
	return c, nil
}

// judge decides on a hello. In mode crc, on an unencrypted connection, the caller
// must also prove its identity.
func (s *Server) judge(st stream, r *reader, h *wire.Hello, sent []byte, cs *tls.ConnectionState) (*Peer, *wire.HelloReply, error) {
	version, err := chooseVersion(h)
	if err != nil {
		return nil, nil, err
	}
	cluster := *s.cluster.Load()
	reply := &wire.HelloReply{Version: version, Cluster: uuidBytes(cluster), Node: s.cfg.Node,
		Role: string(s.cfg.Role), Incarnation: s.incarnation(), Release: s.cfg.Release}
	peer, err := s.identify(st, r, h, sent, cs, reply)
	if err != nil {
		return nil, nil, err
	}
	if err := s.refuses(peer); err != nil {
		return nil, nil, err
	}
	if err := s.admit(peer, h, cluster); err != nil {
		return nil, nil, err
	}
	return peer, reply, nil
}

// giveKey adds the key for unencrypted connections to the reply on a control connection, in mode
// crc.
func (s *Server) giveKey(cs *tls.ConnectionState, peer *Peer, class Class, reply *wire.HelloReply) error {
	if cs == nil || s.cfg.Mode != CRC || class != Control {
		return nil
	}
	id, full, err := s.keys.add(cs, peer, s.clock.Now())
	if full && s.refusals.Allow() {
		s.log.Warn("a certificate reached its limit of connection keys; the server removed the oldest",
			"node", peer.Node, "role", string(peer.Role), "keys", s.keys.most/shareOfMost)
	}
	reply.KeyId = id
	return err
}

// identify determines who the caller is.
func (s *Server) identify(st stream, r *reader, h *wire.Hello, sent []byte, cs *tls.ConnectionState, reply *wire.HelloReply) (*Peer, error) {
	addr := st.RemoteAddr().String()
	switch {
	case cs != nil:
		return verifyPeer(*cs, s.deps.Identity, s.clock.Now(), x509.ExtKeyUsageClientAuth, addr)
	case s.cfg.Mode == Insecure:
		claims := pki.Claims{Cluster: moraine.UUID{1}, Role: pki.Role(h.Role), Node: h.Node, Scope: h.Scope, ReadOnly: h.ReadOnly, Squash: h.Squash}
		if err := claims.Validate(); err != nil { // admit checks the cluster
			return nil, err
		}
		peer := peerOf(claims, pki.KeyID{}, addr)
		var err error
		if peer.Cluster, err = uuidOf(h.Cluster); peer.Cluster.IsZero() {
			peer.Cluster = *s.cluster.Load()
		}
		return peer, err
	case s.cfg.Mode == CRC && Class(h.Class) == Bulk && len(h.KeyId) > 0:
		return s.challenge(st, r, h, sent, reply)
	}
	return nil, &moraine.Error{Op: "transport.hello", Ref: h.Node, Kind: moraine.Unauthenticated,
		Err: fmt.Errorf("server runs in mode %s: unencrypted connections of class %v are refused", s.cfg.Mode, Class(h.Class))}
}

// challenge makes a caller on an unencrypted connection prove that it has the key
// of an earlier control connection. The server proves the same first.
func (s *Server) challenge(st stream, r *reader, h *wire.Hello, sent []byte, reply *wire.HelloReply) (*Peer, error) {
	key, peer := s.keys.find(h.KeyId, s.clock.Now())
	if key == nil {
		return nil, &moraine.Error{Op: "transport.hello", Ref: h.Node, Kind: moraine.Stale,
			Err: errors.New("key is unknown or expired: open a new control connection to get another key")}
	}
	if len(h.Nonce) != nonceLen {
		return nil, badFrame("a nonce of %d bytes", len(h.Nonce))
	}
	nonce := make([]byte, nonceLen)
	rand.Read(nonce) //nolint:errcheck // never fails
	first := &wire.HelloReply{Version: reply.Version, Nonce: nonce, Proof: proof(key, proofOfServer, sent, nonce)}
	if _, err := writeHello(st, flagReply, 1, first); err != nil {
		return nil, err
	}
	var got wire.HelloProof
	if _, err := readHello(r, 0, &got); err != nil {
		return nil, err
	}
	if !hmac.Equal(got.Proof, proof(key, proofOfClient, sent, nonce)) {
		return nil, &moraine.Error{Op: "transport.hello", Ref: h.Node, Kind: moraine.Unauthenticated,
			Err: errors.New("proof of the control connection's key is wrong")}
	}
	peer.Addr, peer.dataKey = st.RemoteAddr().String(), key
	var err error
	h.Token, err = openToken(key, h.Token)
	return peer, err
}

// admit decides whether peer may have what its hello requests.
func (s *Server) admit(peer *Peer, h *wire.Hello, cluster moraine.UUID) error {
	bad := func(kind moraine.Kind, format string, args ...any) error {
		return &moraine.Error{Op: "transport.hello", Ref: peer.Node, Kind: kind, Err: fmt.Errorf(format, args...)}
	}
	asked, err := uuidOf(h.Cluster)
	if err != nil {
		return err
	}
	class := Class(h.Class)
	switch {
	case !asked.IsZero() && !cluster.IsZero() && asked != cluster:
		return bad(moraine.WrongCluster, "caller wants cluster %v, this is %v", asked, cluster)
	case h.Node != peer.Node:
		return bad(moraine.PermissionDenied, "certificate of %s cannot act as %q", peer.Node, h.Node)
	case h.Role != "" && Role(h.Role) != peer.Role:
		return bad(moraine.PermissionDenied, "certificate of a %s cannot act as a %q", peer.Role, h.Role)
	case class != Control && class != Bulk && class != Raft:
		return bad(moraine.Unimplemented, "unknown class of connection: %d", h.Class)
	case class == Raft && (peer.Role != RoleMetadata || s.cfg.Role != RoleMetadata):
		return bad(moraine.PermissionDenied, "only metadata servers exchange the log: a %s called a %s", peer.Role, s.cfg.Role)
	}
	if !needsToken(peer.Role, class) {
		return nil
	}
	peer.Token, err = s.verifyToken(h.Token, peer)
	return err
}

// verifyToken is VerifyToken that also refuses a token of an older incarnation of
// the metadata: its session no longer exists.
func (s *Server) verifyToken(token []byte, peer *Peer) (*wire.TokenClaims, error) {
	claims, err := VerifyToken(token, peer, s.deps.Keys, s.clock.Now())
	if now := s.incarnation(); err == nil && now != 0 && claims.Incarnation != 0 && claims.Incarnation < now {
		return nil, &moraine.Error{Op: "transport.token", Ref: peer.Node, Kind: moraine.Unauthenticated,
			Err: fmt.Errorf("token is of metadata incarnation %d, the current one is %d: open a new session", claims.Incarnation, now)}
	}
	return claims, err
}
