package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/morainefs/moraine"
)

// Files are the paths of the files of an identity, all PEM.
type Files struct {
	CA   string // trusted authorities; more than one during a rotation
	Cert string
	Key  string
}

// FilesIn returns the files of name in dir: ca.crt, NAME.crt, NAME.key.
func FilesIn(dir, name string) Files {
	return Files{CA: filepath.Join(dir, CACertFile), Cert: filepath.Join(dir, name+".crt"), Key: filepath.Join(dir, name+".key")}
}

// Names returns the names of the certificates in dir, in order, without the
// authority's.
func Names(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if n, ok := strings.CutSuffix(e.Name(), ".crt"); ok && e.Name() != CACertFile {
			names = append(names, n)
		}
	}
	return names, nil
}

// Identity is what a process presents, and which authorities it trusts. It follows
// its files: each use checks whether one was changed, and reloads them if they
// match each other. Open connections stay unchanged. Safe for concurrent use.
type Identity struct {
	files Files

	mu    sync.Mutex // guards the fields below; held while small files are read
	now   loaded
	stamp [3]fileStamp
}

type loaded struct {
	cert   *tls.Certificate
	claims Claims
	roots  *x509.CertPool
}

type fileStamp struct {
	size  int64
	mtime time.Time
}

// LoadIdentity reads files. It fails if they do not match: key and certificate must
// match, and an authority in CA must have issued the certificate. An expired
// certificate loads; its users get one clear error.
func LoadIdentity(files Files) (*Identity, error) {
	id := &Identity{files: files}
	id.stamp = id.stamps()
	var err error
	if id.now, err = load(files); err != nil {
		return nil, err
	}
	return id, nil
}

// Current returns the certificate to present, its claims, and the authorities to
// trust, as the files hold them now. The results must not be changed.
func (id *Identity) Current() (*tls.Certificate, Claims, *x509.CertPool) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if s := id.stamps(); s != id.stamp {
		// While files are being replaced they may not match. The identity then
		// stays, and since the stamp stays too, the next use retries.
		if l, err := load(id.files); err == nil && l.claims.Cluster == id.now.claims.Cluster {
			id.now, id.stamp = l, s
		}
	}
	return id.now.cert, id.now.claims, id.now.roots
}

// Claims returns the claims of the identity.
func (id *Identity) Claims() Claims {
	_, c, _ := id.Current()
	return c
}

// NotBefore returns from when on the certificate is valid.
func (id *Identity) NotBefore() time.Time {
	cert, _, _ := id.Current()
	return cert.Leaf.NotBefore
}

// NotAfter returns when the certificate expires.
func (id *Identity) NotAfter() time.Time {
	cert, _, _ := id.Current()
	return cert.Leaf.NotAfter
}

// Check returns an error that says what to do if the certificate is not valid at
// now.
func (id *Identity) Check(now time.Time) error {
	cert, claims, _ := id.Current()
	return checkTime(cert.Leaf, claims, now)
}

func (id *Identity) stamps() (s [3]fileStamp) {
	for i, p := range []string{id.files.CA, id.files.Cert, id.files.Key} {
		if st, err := os.Stat(p); err == nil {
			s[i] = fileStamp{st.Size(), st.ModTime()}
		}
	}
	return s
}

func load(f Files) (loaded, error) {
	var l loaded
	caPEM, err := os.ReadFile(f.CA)
	if err != nil {
		return l, wrap("pki.LoadIdentity", f.CA, err)
	}
	certPEM, err := os.ReadFile(f.Cert)
	if err != nil {
		return l, wrap("pki.LoadIdentity", f.Cert, err)
	}
	keyPEM, err := os.ReadFile(f.Key)
	if err != nil {
		return l, wrap("pki.LoadIdentity", f.Key, err)
	}
	if err := CheckKeyMode(f.Key); err != nil {
		return l, err
	}
	cas, err := parseCerts(caPEM)
	if err != nil {
		return l, wrap("pki.LoadIdentity", f.CA, err)
	}
	l.roots = x509.NewCertPool()
	for _, c := range cas {
		l.roots.AddCert(c)
	}
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return l, wrap("pki.LoadIdentity", f.Cert, err)
	}
	l.cert = &cert
	// An expired certificate still loads: it suffices that it once was valid.
	for _, at := range append([]*x509.Certificate{cert.Leaf}, cas...) {
		if l.claims, err = Verify(cert.Certificate, l.roots, at.NotBefore, x509.ExtKeyUsageClientAuth); err == nil {
			break
		}
	}
	return l, err
}

// CheckKeyMode refuses the file of a private key that others than its owner and
// group may read.
func CheckKeyMode(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return wrap("pki.CheckKeyMode", path, err)
	}
	if st.Mode().Perm()&0o037 != 0 {
		return &moraine.Error{Op: "pki.CheckKeyMode", Ref: path, Kind: moraine.PermissionDenied,
			Err: fmt.Errorf("private key must not be readable by others, but its mode is %v: chmod 600 it", fs.FileMode(st.Mode().Perm()))}
	}
	return nil
}

// Verify verifies the chain that the other end of a connection presented (its own
// certificate first) against roots at now. use is client or server authentication.
// It returns the claims of the certificate. Host names do not count: a node is
// known by its role and id, wherever it runs. Errors have kind Unauthenticated.
func Verify(raw [][]byte, roots *x509.CertPool, now time.Time, use x509.ExtKeyUsage) (Claims, error) {
	if len(raw) == 0 {
		return Claims{}, unauthenticated("", errors.New("no certificate was presented"))
	}
	leaf, err := x509.ParseCertificate(raw[0])
	if err != nil {
		return Claims{}, unauthenticated("", err)
	}
	claims, err := ClaimsOf(leaf)
	if err != nil {
		return Claims{}, unauthenticated(leaf.Subject.CommonName, err)
	}
	if err := checkTime(leaf, claims, now); err != nil {
		// For a foreign certificate the dates mean nothing: a wrong authority must
		// not look like a wrong clock.
		if foreign := checkIssuer(leaf, claims, roots, use); foreign != nil {
			return Claims{}, foreign
		}
		return Claims{}, err
	}
	chains, err := leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{use}})
	if err != nil {
		return Claims{}, unauthenticated(claims.Node, verifyText(err, claims, now))
	}
	for _, chain := range chains {
		if cluster, err := clusterOfCA(chain[len(chain)-1]); err == nil && cluster == claims.Cluster {
			return claims, nil
		}
	}
	return Claims{}, unauthenticated(claims.Node, fmt.Errorf("certificate names cluster %v, but another cluster's authority issued it", claims.Cluster))
}

// checkIssuer returns an error if no authority in roots has issued leaf, whatever
// the time.
func checkIssuer(leaf *x509.Certificate, c Claims, roots *x509.CertPool, use x509.ExtKeyUsage) error {
	for _, at := range []time.Time{leaf.NotBefore, leaf.NotAfter} {
		_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{use}})
		var unknown x509.UnknownAuthorityError
		if !errors.As(err, &unknown) {
			return nil
		}
	}
	return unauthenticated(c.Node, verifyText(x509.UnknownAuthorityError{Cert: leaf}, c, time.Time{}))
}

func verifyText(err error, c Claims, now time.Time) error {
	var unknown x509.UnknownAuthorityError
	if errors.As(err, &unknown) {
		return fmt.Errorf("certificate of %s %s (cluster %v) was not issued by an authority that is trusted here", c.Role, c.Node, c.Cluster)
	}
	var invalid x509.CertificateInvalidError
	if errors.As(err, &invalid) && invalid.Reason == x509.IncompatibleUsage {
		return fmt.Errorf("certificate of %s %s does not allow this use: a %s cannot be a server", c.Role, c.Node, c.Role)
	}
	if errors.As(err, &invalid) && invalid.Reason == x509.Expired { // the caller has checked the leaf's own dates
		if ca := invalid.Cert; now.Before(ca.NotBefore) {
			return fmt.Errorf("authority of the certificate of %s %s is %w", c.Role, c.Node, notYet(ca.NotBefore, now))
		}
		return fmt.Errorf("authority of the certificate of %s %s expired on %s: make a new one, and issue all certificates with it",
			c.Role, c.Node, invalid.Cert.NotAfter.UTC().Format(day))
	}
	return err
}

// day is the time format of errors.
const day = "2006-01-02 15:04 MST"

func checkTime(leaf *x509.Certificate, c Claims, now time.Time) error {
	switch {
	case now.After(leaf.NotAfter):
		return unauthenticated(c.Node, fmt.Errorf("certificate of %s %s expired on %s: renew it with `moraine cert renew DIR %s`",
			c.Role, c.Node, leaf.NotAfter.UTC().Format(day), c.Node))
	case now.Before(leaf.NotBefore):
		return unauthenticated(c.Node, fmt.Errorf("certificate of %s %s is %w", c.Role, c.Node, notYet(leaf.NotBefore, now)))
	}
	return nil
}

// notYet returns the error for a certificate whose validity begins after the verifier's present time.
func notYet(from, now time.Time) error {
	return fmt.Errorf("valid only from %s, and the clock says %s: check the clocks of the machine that issued it and of the one that refuses it",
		from.UTC().Format(day), now.UTC().Format(day))
}

func unauthenticated(node string, err error) error {
	var e *moraine.Error
	if errors.As(err, &e) && e.Kind == moraine.Unauthenticated {
		return err
	}
	return &moraine.Error{Op: "pki.Verify", Ref: node, Kind: moraine.Unauthenticated, Err: err}
}
