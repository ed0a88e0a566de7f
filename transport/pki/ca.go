package pki

import (
	"bytes"
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/morainefs/moraine"
)

// Names of the authority's files in its directory.
const (
	CACertFile = "ca.crt"
	CAKeyFile  = "ca.key"
)

// clockSkew is how far the clocks of two nodes may differ before a new certificate
// is refused as not yet valid.
const clockSkew = 5 * time.Minute

// CA is the certificate authority of one cluster. Safe for concurrent use.
type CA struct {
	cluster moraine.UUID
	cert    *x509.Certificate
	key     *ecdsa.PrivateKey
	// trusted are this authority and those of its ca.crt, which it may have replaced.
	trusted []*x509.Certificate
}

// NewCA makes the authority of a cluster, valid for ttl from now on.
func NewCA(cluster moraine.UUID, now time.Time, ttl time.Duration) (*CA, error) {
	if cluster.IsZero() {
		return nil, &moraine.Error{Op: "pki.NewCA", Kind: moraine.InvalidArgument, Err: errors.New("cluster id is missing")}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, wrap("pki.NewCA", "", err)
	}
	tmpl := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "Moraine cluster " + cluster.String()},
		URIs:                  []*url.URL{caURI(cluster)},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(ttl),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	if tmpl.SerialNumber, err = serial(); err != nil {
		return nil, wrap("pki.NewCA", "", err)
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return nil, wrap("pki.NewCA", "", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, wrap("pki.NewCA", "", err)
	}
	return &CA{cluster: cluster, cert: cert, key: key, trusted: []*x509.Certificate{cert}}, nil
}

// LoadCA reads ca.crt and ca.key in dir. It refuses a key that others may read, as
// for an identity.
func LoadCA(dir string) (*CA, error) {
	certPath, keyPath := filepath.Join(dir, CACertFile), filepath.Join(dir, CAKeyFile)
	certPEM, err := os.ReadFile(certPath)
	if err != nil {
		return nil, wrap("pki.LoadCA", certPath, err)
	}
	keyPEM, err := os.ReadFile(keyPath)
	if err != nil {
		return nil, wrap("pki.LoadCA", keyPath, err)
	}
	if err := CheckKeyMode(keyPath); err != nil {
		return nil, err
	}
	certs, err := parseCerts(certPEM)
	if err != nil {
		return nil, wrap("pki.LoadCA", certPath, err)
	}
	key, err := parseKey(keyPEM)
	if err != nil {
		return nil, wrap("pki.LoadCA", keyPath, err)
	}
	for _, c := range certs { // a rotated ca.crt also holds the old authority
		cluster, err := clusterOfCA(c)
		if err == nil && key.PublicKey.Equal(c.PublicKey) {
			return &CA{cluster: cluster, cert: c, key: key, trusted: certs}, nil
		}
	}
	return nil, wrap("pki.LoadCA", keyPath, errors.New("key belongs to no authority in "+certPath))
}

// Cluster returns the cluster of the authority.
func (ca *CA) Cluster() moraine.UUID { return ca.cluster }

// CertPEM returns the authority's certificate, which every node needs.
func (ca *CA) CertPEM() []byte { return encodePEM("CERTIFICATE", ca.cert.Raw) }

// Save writes ca.crt and ca.key (readable only by its owner) into dir, which it
// makes if needed. It does not overwrite an authority.
func (ca *CA) Save(dir string) error {
	if _, err := os.Lstat(filepath.Join(dir, CAKeyFile)); !errors.Is(err, fs.ErrNotExist) {
		return &moraine.Error{Op: "pki.Save", Ref: dir, Kind: moraine.Exists, Err: errors.New("directory already has an authority")}
	}
	der, err := x509.MarshalPKCS8PrivateKey(ca.key)
	if err != nil {
		return wrap("pki.Save", dir, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return wrap("pki.Save", dir, err)
	}
	if err := writeFile(filepath.Join(dir, CAKeyFile), encodePEM("PRIVATE KEY", der), 0o600); err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, CACertFile), ca.CertPEM(), 0o644)
}

// Request is what Issue certifies.
type Request struct {
	Role Role
	Node string
	// Scope is "/" if empty.
	Scope    string
	ReadOnly bool
	// NoSquash leaves root as root. Servers and administrators are never squashed.
	NoSquash bool
	// Hosts are names and IP addresses for tools that check them (browsers on the
	// admin port). Moraine itself uses role and node.
	Hosts []string
	// TTL is the term of the certificate: 1 year if zero, and never past the end of
	// the authority's.
	TTL time.Duration
	// Now is the time of issue.
	Now time.Time
	// Key is the key to certify; nil: Issue makes a new one.
	Key *ecdsa.PrivateKey
}

// Certificate is an issued certificate and its private key.
type Certificate struct {
	Claims    Claims
	NotBefore time.Time
	NotAfter  time.Time
	CertPEM   []byte
	KeyPEM    []byte
	caPEM     []byte
}

// CheckClock returns an error if the authority is not valid yet at now. Then
// the clock of this machine, or of the one that made the authority, is wrong.
// Servers would refuse what it issues.
func (ca *CA) CheckClock(now time.Time) error {
	if !now.Before(ca.cert.NotBefore) {
		return nil
	}
	return &moraine.Error{Op: "pki.CheckClock", Ref: ca.cluster.String(), Kind: moraine.InvalidArgument,
		Err: fmt.Errorf("authority is %w: correct the clock of this machine; if it is right, make another authority with `moraine cert init`",
			notYet(ca.cert.NotBefore, now))}
}

// Issue certifies a key for r.
func (ca *CA) Issue(r Request) (*Certificate, error) {
	r.Scope = cmp.Or(r.Scope, "/")
	r.TTL = cmp.Or(r.TTL, 365*24*time.Hour)
	claims := Claims{Cluster: ca.cluster, Role: r.Role, Node: r.Node, Scope: r.Scope, ReadOnly: r.ReadOnly,
		Squash: !r.NoSquash && r.Role.Confined()}
	if err := claims.Validate(); err != nil {
		return nil, err
	}
	tmpl := leafTemplate(claims, r)
	if tmpl.NotAfter.After(ca.cert.NotAfter) {
		tmpl.NotAfter = ca.cert.NotAfter
	}
	if !r.Now.Before(tmpl.NotAfter) {
		return nil, &moraine.Error{Op: "pki.Issue", Ref: r.Node, Kind: moraine.InvalidArgument,
			Err: fmt.Errorf("authority expired on %s, so its certificates are invalid: make a new one (`moraine cert init`), and issue all certificates with it", ca.cert.NotAfter.Format(time.DateOnly))}
	}
	var err error
	if tmpl.SerialNumber, err = serial(); err != nil {
		return nil, wrap("pki.Issue", r.Node, err)
	}
	key := r.Key
	if key == nil {
		if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			return nil, wrap("pki.Issue", r.Node, err)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, ca.cert, key.Public(), ca.key)
	if err != nil {
		return nil, wrap("pki.Issue", r.Node, err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, wrap("pki.Issue", r.Node, err)
	}
	return &Certificate{Claims: claims, NotBefore: tmpl.NotBefore, NotAfter: tmpl.NotAfter, CertPEM: encodePEM("CERTIFICATE", der),
		KeyPEM: encodePEM("PRIVATE KEY", keyDER), caPEM: ca.CertPEM()}, nil
}

// Renew certifies the key and the names of an identity, which may have expired, for
// ttl from now on. Its sessions continue under the new certificate. The identity
// must be of this cluster.
func (ca *CA) Renew(id *Identity, now time.Time, ttl time.Duration) (*Certificate, error) {
	cert, claims, _ := id.Current()
	key, ok := cert.PrivateKey.(*ecdsa.PrivateKey)
	switch {
	case !ok:
		return nil, wrap("pki.Renew", claims.Node, fmt.Errorf("key is a %T, not an ECDSA key", cert.PrivateKey))
	case claims.Cluster != ca.cluster:
		return nil, &moraine.Error{Op: "pki.Renew", Ref: claims.Node, Kind: moraine.WrongCluster,
			Err: fmt.Errorf("certificate is of cluster %v, the authority of %v", claims.Cluster, ca.cluster)}
	case !ca.issued(cert.Leaf):
		return nil, &moraine.Error{Op: "pki.Renew", Ref: claims.Node, Kind: moraine.Unauthenticated,
			Err: errors.New("no authority in the ca.crt of this authority has issued the certificate: do not trust its role and scope; issue another one (`moraine cert issue`)")}
	}
	r := Request{Role: claims.Role, Node: claims.Node, Scope: claims.Scope, ReadOnly: claims.ReadOnly, NoSquash: !claims.Squash,
		TTL: ttl, Now: now, Key: key, Hosts: slices.Clone(cert.Leaf.DNSNames)}
	for _, ip := range cert.Leaf.IPAddresses {
		r.Hosts = append(r.Hosts, ip.String())
	}
	return ca.Issue(r)
}

// issued reports whether an authority of this cluster that is trusted here has signed leaf,
// whatever the time.
func (ca *CA) issued(leaf *x509.Certificate) bool {
	return slices.ContainsFunc(ca.trusted, func(c *x509.Certificate) bool {
		cluster, err := clusterOfCA(c)
		return err == nil && cluster == ca.cluster && leaf.CheckSignatureFrom(c) == nil
	})
}

func leafTemplate(c Claims, r Request) *x509.Certificate {
	tmpl := &x509.Certificate{
		Subject:               pkix.Name{CommonName: c.Node, OrganizationalUnit: []string{string(c.Role)}},
		URIs:                  []*url.URL{c.URI()},
		NotBefore:             r.Now.Add(-clockSkew),
		NotAfter:              r.Now.Add(r.TTL),
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if c.Role.Server() || c.Role == RoleGateway {
		tmpl.ExtKeyUsage = append(tmpl.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, h := range r.Hosts {
		if ip := net.ParseIP(h); ip != nil {
			tmpl.IPAddresses = append(tmpl.IPAddresses, ip)
		} else {
			tmpl.DNSNames = append(tmpl.DNSNames, h)
		}
	}
	return tmpl
}

// Save writes NAME.crt, NAME.key (readable only by its owner) and the authority's
// ca.crt into dir, each whole or not at all. It replaces the certificate last: a
// process that reloads in between finds a pair that does not match, and keeps its
// current one.
func (c *Certificate) Save(dir, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return wrap("pki.Save", dir, err)
	}
	f := FilesIn(dir, name)
	if have, err := os.ReadFile(f.CA); err != nil || !bytes.Contains(have, bytes.TrimSpace(c.caPEM)) {
		if err := writeFile(f.CA, append(have, c.caPEM...), 0o644); err != nil {
			return err
		}
	}
	if err := writeFile(f.Key, c.KeyPEM, 0o600); err != nil {
		return err
	}
	return writeFile(f.Cert, c.CertPEM, 0o644)
}

// SaveNew is Save that replaces nothing: Exists if dir has a certificate or a key of that name.
func (c *Certificate) SaveNew(dir, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	f := FilesIn(dir, name)
	for _, path := range []string{f.Cert, f.Key} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return &moraine.Error{Op: "pki.SaveNew", Ref: path, Kind: moraine.Exists, Err: errors.New("file exists and is not replaced")}
		}
	}
	return c.Save(dir, name)
}

// checkName refuses the names that files of a certificate cannot have.
func checkName(name string) error {
	switch {
	case !ValidNode(name):
		return &moraine.Error{Op: "pki.Save", Ref: name, Kind: moraine.InvalidArgument, Err: errors.New("not a file name")}
	case strings.EqualFold(name+".key", CAKeyFile): // a file system may take both for one
		return &moraine.Error{Op: "pki.Save", Ref: name, Kind: moraine.InvalidArgument,
			Err: fmt.Errorf("%s and %s are the files of the authority: choose another name", CACertFile, CAKeyFile)}
	}
	return nil
}

func caURI(cluster moraine.UUID) *url.URL {
	return &url.URL{Scheme: scheme, Host: cluster.String(), Path: "/ca"}
}

func clusterOfCA(c *x509.Certificate) (moraine.UUID, error) {
	if !c.IsCA || len(c.URIs) != 1 || c.URIs[0].Scheme != scheme || c.URIs[0].Path != "/ca" {
		return moraine.UUID{}, fmt.Errorf("%q is not the authority of a cluster", c.Subject.CommonName)
	}
	return moraine.ParseUUID(c.URIs[0].Host)
}

func serial() (*big.Int, error) {
	return rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
}

// writeFile replaces path by data, whole or not at all.
func writeFile(path string, data []byte, perm fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return wrap("pki.Save", path, err)
	}
	defer os.Remove(f.Name()) // fails after the rename, as expected
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(perm), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return wrap("pki.Save", path, err)
	}
	return nil
}

func encodePEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// parseCerts decodes authorities, each of which must be self-signed.
func parseCerts(p []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for block, rest := pem.Decode(p); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		// No other check covers the trusted certificates: a chain ends at the key
		// of its authority.
		if err := c.CheckSignature(c.SignatureAlgorithm, c.RawTBSCertificate, c.Signature); err != nil {
			return nil, fmt.Errorf("authority %q is damaged, or not self-signed: %w", c.Subject.CommonName, err)
		}
		certs = append(certs, c)
	}
	if len(certs) == 0 {
		return nil, errors.New("file holds no certificate")
	}
	return certs, nil
}

func parseKey(p []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(p)
	if block == nil {
		return nil, errors.New("file holds no private key")
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	key, ok := k.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("file holds a %T, not an ECDSA key", k)
	}
	return key, nil
}

func wrap(op, ref string, err error) error {
	kind := moraine.IOError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		kind = moraine.NotFound
	case errors.Is(err, fs.ErrPermission):
		kind = moraine.PermissionDenied
	}
	return &moraine.Error{Op: op, Ref: ref, Kind: kind, Err: err}
}
