// Package pki makes and checks the certificates of a cluster. There is one
// certificate authority per cluster, and one certificate per node or user. A
// process presents an identity, which follows its files when they are rotated.
//
// The package does not open connections and grants no permissions. It determines
// who somebody is (Claims), proved by a chain to the cluster's authority.
//
// One path through it, an identity: `NewCA` runs once per cluster, and
// `(*CA).Issue` for each node. Both write files to a directory (ca.crt, NAME.crt,
// NAME.key). `LoadIdentity` reads them in the process that uses them. Package
// transport presents the certificate in TLS handshakes, and calls Verify on the
// certificate of the other end.
//
// docs/formats/certificate.md describes the form of a certificate.
package pki

import (
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/morainefs/moraine"
)

// Role is what a certificate permits its holder to be.
type Role string

// The roles. Servers (metadata, chunkserver) act for the cluster; the others act
// for users.
const (
	RoleMetadata    Role = "metadata"
	RoleChunkserver Role = "chunkserver"
	RoleGateway     Role = "gateway"
	RoleClient      Role = "client"
	RoleAdmin       Role = "admin"
)

// Valid reports whether r is one of the roles.
func (r Role) Valid() bool {
	switch r {
	case RoleMetadata, RoleChunkserver, RoleGateway, RoleClient, RoleAdmin:
		return true
	}
	return false
}

// Server reports whether holders of r accept connections.
func (r Role) Server() bool { return r == RoleMetadata || r == RoleChunkserver }

// Confined reports whether holders of r act as users. A directory may confine
// them, they may be read-only, and a squash rule may apply to them.
func (r Role) Confined() bool { return r == RoleGateway || r == RoleClient }

// Claims is the identity of a certificate's holder.
type Claims struct {
	Cluster moraine.UUID
	Role    Role
	// Node is the node id, unique in its cluster: 1 to 128 of a-z A-Z 0-9 . _ -
	Node string
	// Scope is the directory that confines the holder: a clean absolute path, "/"
	// for everything.
	Scope    string
	ReadOnly bool
	// Squash maps root to nobody.
	Squash bool
}

// KeyID names a public key: the SHA-256 of its SubjectPublicKeyInfo.
type KeyID [sha256.Size]byte

// KeyOf returns the name of a certificate's public key.
func KeyOf(cert *x509.Certificate) KeyID { return sha256.Sum256(cert.RawSubjectPublicKeyInfo) }

// IsZero reports whether k names no key.
func (k KeyID) IsZero() bool { return k == KeyID{} }

// IssuedAt returns when a certificate was issued, by the clock of its issuer.
func IssuedAt(cert *x509.Certificate) time.Time { return cert.NotBefore.Add(clockSkew) }

// SerialOf returns a certificate's serial number in hexadecimal.
func SerialOf(cert *x509.Certificate) string { return cert.SerialNumber.Text(16) }

const (
	scheme     = "moraine"
	maxNodeLen = 128
)

// Validate returns an error if c is invalid.
func (c Claims) Validate() error {
	bad := func(format string, args ...any) error {
		return &moraine.Error{Op: "pki.Claims", Ref: c.Node, Kind: moraine.InvalidArgument, Err: fmt.Errorf(format, args...)}
	}
	switch {
	case c.Cluster.IsZero():
		return bad("cluster id is missing")
	case !c.Role.Valid():
		return bad("unknown role %q", c.Role)
	case !ValidNode(c.Node):
		return bad("node id must be 1 to %d characters of a-z A-Z 0-9 . _ -, not %q", maxNodeLen, c.Node)
	case !strings.HasPrefix(c.Scope, "/") || path.Clean(c.Scope) != c.Scope:
		return bad("scope must be a clean absolute path, not %q", c.Scope)
	case !c.Role.Confined() && (c.Scope != "/" || c.ReadOnly || c.Squash):
		// None of these limits what servers and administrators may do, so a
		// certificate must not suggest it.
		return bad("role %s has no scope, is not read-only and is not squashed: issue a certificate of role client for that", c.Role)
	}
	return nil
}

// ValidNode reports whether id may name a node.
func ValidNode(id string) bool {
	if id == "" || len(id) > maxNodeLen || id == "." || id == ".." {
		return false
	}
	for _, r := range []byte(id) {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '.', r == '_', r == '-':
		default:
			return false
		}
	}
	return true
}

// URI is the form of c in a certificate:
// moraine://CLUSTER/ROLE/NODE?scope=/a&ro=1&squash=0.
func (c Claims) URI() *url.URL {
	q := url.Values{}
	q.Set("scope", c.Scope)
	q.Set("ro", bit(c.ReadOnly))
	q.Set("squash", bit(c.Squash))
	return &url.URL{Scheme: scheme, Host: c.Cluster.String(), Path: "/" + string(c.Role) + "/" + c.Node, RawQuery: q.Encode()}
}

// ParseURI decodes what URI writes. A missing scope is "/", a missing ro is 0, and
// a missing squash is 1 for the roles that it applies to. It refuses unknown
// parameters, since one may be a restriction.
func ParseURI(u *url.URL) (Claims, error) {
	bad := func(err error) (Claims, error) {
		return Claims{}, &moraine.Error{Op: "pki.ParseURI", Ref: u.Redacted(), Kind: moraine.InvalidArgument, Err: err}
	}
	if u.Scheme != scheme || u.User != nil || u.Fragment != "" {
		return bad(fmt.Errorf("not a %s:// name", scheme))
	}
	cluster, err := moraine.ParseUUID(u.Host)
	if err != nil {
		return bad(err)
	}
	parts := strings.Split(u.Path, "/")
	if len(parts) != 3 || parts[0] != "" {
		return bad(fmt.Errorf("path is not /ROLE/NODE"))
	}
	c := Claims{Cluster: cluster, Role: Role(parts[1]), Node: parts[2], Scope: "/"}
	c.Squash = c.Role.Confined()
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return bad(err)
	}
	for name, vals := range q {
		if len(vals) != 1 {
			return bad(fmt.Errorf("parameter %s appears %d times", name, len(vals)))
		}
		v := vals[0]
		var ok bool
		switch name {
		case "scope":
			c.Scope, ok = v, true
		case "ro":
			c.ReadOnly, ok = parseBit(v)
		case "squash":
			c.Squash, ok = parseBit(v)
		}
		if !ok {
			return bad(fmt.Errorf("parameter %s=%q is unknown", name, v))
		}
	}
	if err := c.Validate(); err != nil {
		return bad(err)
	}
	return c, nil
}

// ClaimsOf returns the claims in a certificate without checking its chain.
func ClaimsOf(cert *x509.Certificate) (Claims, error) {
	if cert.IsCA || len(cert.URIs) != 1 {
		return Claims{}, &moraine.Error{Op: "pki.ClaimsOf", Ref: cert.Subject.CommonName, Kind: moraine.Unauthenticated,
			Err: fmt.Errorf("not a certificate of a node: it must hold exactly one %s:// name", scheme)}
	}
	return ParseURI(cert.URIs[0])
}

func bit(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

func parseBit(s string) (v, ok bool) { return s == "1", s == "0" || s == "1" }
