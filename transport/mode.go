package transport

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/pki"
)

// Mode is how connections are protected. Both ends must use the same.
type Mode string

const (
	// Secure encrypts everything with TLS 1.3.
	Secure Mode = "secure"
	// CRC encrypts control and Raft connections. Bulk connections authenticate by a
	// key from a control connection, and are then unencrypted, with checksums of
	// their contents. Only session tokens are sealed. This is for networks without
	// eavesdroppers and attackers, at a fraction of the cost.
	CRC Mode = "crc"
	// Insecure has no certificates: every claimed identity is accepted. It is for
	// one machine, and for tests.
	Insecure Mode = "insecure"
)

// Validate reports whether m is one of the modes.
func (m Mode) Validate() error {
	switch m {
	case Secure, CRC, Insecure:
		return nil
	}
	return &moraine.Error{Op: "transport.Mode", Ref: string(m), Kind: moraine.InvalidArgument, Err: errors.New("unknown mode: use secure, crc or insecure")}
}

// encrypts reports whether connections of a class run over TLS.
func (m Mode) encrypts(c Class) bool { return m == Secure || m == CRC && c != Bulk }

// keyLabel names the key that both ends of a control connection derive, in
// mode CRC (RFC 5705).
const keyLabel = "EXPORTER-moraine-data-connection"

// serverTLS configures the accepting end. It accepts any certificate during the
// handshake, so that the answer to the hello can say why it is refused. Nothing
// else on the connection is processed before verifyPeer has passed.
func serverTLS(id *pki.Identity) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ClientAuth: tls.RequireAnyClientCert,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			cert, _, _ := id.Current()
			return cert, nil
		},
		SessionTicketsDisabled:      true, // a resumed session would outlive a certificate
		DynamicRecordSizingDisabled: true,
	}
}

// clientTLS configures the calling end, which ends the handshake if the server is
// not of the cluster. Host names are not used: the caller compares the server's
// role and node. It presents own.
func clientTLS(id *pki.Identity, own *tls.Certificate, now func() time.Time) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection does it, by role and node instead of host names
		VerifyConnection: func(cs tls.ConnectionState) error {
			_, err := verifyPeer(cs, id, now(), x509.ExtKeyUsageServerAuth, "")
			return err
		},
		GetClientCertificate:        func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own, nil },
		DynamicRecordSizingDisabled: true,
	}
}

// verifyPeer returns the identity of the other end, at addr, of a TLS connection.
func verifyPeer(cs tls.ConnectionState, id *pki.Identity, now time.Time, use x509.ExtKeyUsage, addr string) (*Peer, error) {
	_, own, roots := id.Current()
	raw := make([][]byte, len(cs.PeerCertificates))
	for i, c := range cs.PeerCertificates {
		raw[i] = c.Raw
	}
	claims, err := pki.Verify(raw, roots, now, use)
	if err != nil {
		return nil, err
	}
	if claims.Cluster != own.Cluster {
		return nil, &moraine.Error{Op: "transport.hello", Ref: claims.Node, Kind: moraine.WrongCluster,
			Err: fmt.Errorf("certificate of the other end is of cluster %v, ours of %v", claims.Cluster, own.Cluster)}
	}
	leaf := cs.PeerCertificates[0]
	p := peerOf(claims, pki.KeyOf(leaf), addr)
	p.Serial, p.Issued, p.NotAfter = pki.SerialOf(leaf), pki.IssuedAt(leaf), leaf.NotAfter
	return p, nil
}

func peerOf(c pki.Claims, key pki.KeyID, addr string) *Peer {
	p := &Peer{Cluster: c.Cluster, Role: c.Role, Node: c.Node, Scope: c.Scope, ReadOnly: c.ReadOnly, Squash: c.Squash, Addr: addr, Key: key}
	p.principal = p.hash()
	return p
}

// splitAddress returns the network and address of host:port or unix:PATH.
func splitAddress(addr string) (network, address string) {
	if p, ok := strings.CutPrefix(addr, "unix:"); ok {
		return "unix", p
	}
	return "tcp", addr
}

// joinAddress is the inverse of splitAddress.
func joinAddress(a net.Addr) string {
	if a.Network() == "unix" {
		return "unix:" + a.String()
	}
	return a.String()
}
