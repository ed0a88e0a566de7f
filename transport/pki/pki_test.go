package pki_test

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/stretchr/testify/require"
)

var (
	cluster = moraine.UUID{0xc1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	noon    = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
)

func newCA(t *testing.T) *pki.CA {
	ca, err := pki.NewCA(cluster, noon, 10*365*24*time.Hour)
	require.NoError(t, err)
	return ca
}

func chain(t *testing.T, c *pki.Certificate) [][]byte {
	block, _ := pem.Decode(c.CertPEM)
	require.NotNil(t, block)
	return [][]byte{block.Bytes}
}

func pool(cas ...*pki.CA) *x509.CertPool {
	p := x509.NewCertPool()
	for _, ca := range cas {
		p.AppendCertsFromPEM(ca.CertPEM())
	}
	return p
}

// The names in certificates have not changed since the first version.
func TestGoldenURIs(t *testing.T) {
	for uri, want := range map[string]pki.Claims{
		"moraine://c1010203-0405-0607-0809-0a0b0c0d0e0f/metadata/m1?ro=0&scope=%2F&squash=0":            {Cluster: cluster, Role: pki.RoleMetadata, Node: "m1", Scope: "/"},
		"moraine://c1010203-0405-0607-0809-0a0b0c0d0e0f/client/user-7.a?ro=1&scope=%2Fa%2Fb&squash=1":   {Cluster: cluster, Role: pki.RoleClient, Node: "user-7.a", Scope: "/a/b", ReadOnly: true, Squash: true},
		"moraine://c1010203-0405-0607-0809-0a0b0c0d0e0f/gateway/root?ro=0&scope=%2Fsp+ace%26x&squash=0": {Cluster: cluster, Role: pki.RoleGateway, Node: "root", Scope: "/sp ace&x"},
	} {
		require.Equal(t, uri, want.URI().String())
		u, err := url.Parse(uri)
		require.NoError(t, err)
		got, err := pki.ParseURI(u)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

func TestBadURIs(t *testing.T) {
	const good = "moraine://c1010203-0405-0607-0809-0a0b0c0d0e0f/client/c1"
	u, err := url.Parse(good)
	require.NoError(t, err)
	c, err := pki.ParseURI(u)
	require.NoError(t, err)
	require.Equal(t, pki.Claims{Cluster: cluster, Role: pki.RoleClient, Node: "c1", Scope: "/", Squash: true}, c, "what is not said restricts")
	for _, bad := range []string{
		"https://c1010203-0405-0607-0809-0a0b0c0d0e0f/client/c1",
		"moraine://not-a-uuid/client/c1",
		"moraine://00000000-0000-0000-0000-000000000000/client/c1",
		"moraine://c1010203-0405-0607-0809-0a0b0c0d0e0f/king/c1",
		"moraine://c1010203-0405-0607-0809-0a0b0c0d0e0f/client/",
		"moraine://c1010203-0405-0607-0809-0a0b0c0d0e0f/client/..",
		"moraine://c1010203-0405-0607-0809-0a0b0c0d0e0f/client/a/b",
		"moraine://c1010203-0405-0607-0809-0a0b0c0d0e0f/client/a%2Fb",
		"moraine://u@c1010203-0405-0607-0809-0a0b0c0d0e0f/client/c1",
		good + "?scope=a", good + "?scope=/a/../b", good + "?scope=/a&scope=/", good + "?ro=yes", good + "?future=1", good + "#x",
		"moraine://c1010203-0405-0607-0809-0a0b0c0d0e0f/chunkserver/n1?scope=/a",
	} {
		u, err := url.Parse(bad)
		require.NoError(t, err)
		_, err = pki.ParseURI(u)
		require.ErrorIs(t, err, moraine.InvalidArgument, bad)
	}
}

func FuzzParseURI(f *testing.F) {
	f.Add("moraine://c1010203-0405-0607-0809-0a0b0c0d0e0f/client/c1?scope=%2Fa&ro=1&squash=0")
	f.Fuzz(func(t *testing.T, s string) {
		u, err := url.Parse(s)
		if err != nil {
			return
		}
		c, err := pki.ParseURI(u)
		if err != nil {
			return
		}
		if again, err := pki.ParseURI(c.URI()); err != nil || again != c {
			t.Fatalf("%+v comes back as %+v, %v", c, again, err)
		}
	})
}

func TestVerify(t *testing.T) {
	ca := newCA(t)
	imposter, err := pki.NewCA(cluster, noon, time.Hour)
	require.NoError(t, err)
	other, err := pki.NewCA(moraine.UUID{9}, noon, time.Hour)
	require.NoError(t, err)
	issue := func(ca *pki.CA, r pki.Request) [][]byte {
		r.Now = noon
		c, err := ca.Issue(r)
		require.NoError(t, err)
		return chain(t, c)
	}
	server := issue(ca, pki.Request{Role: pki.RoleChunkserver, Node: "n1", Hosts: []string{"n1.example", "10.0.0.1"}})
	user := issue(ca, pki.Request{Role: pki.RoleClient, Node: "c1", Scope: "/home/c1", ReadOnly: true})

	// certificates that begin before their authority, and end after it
	early, err := pki.NewCA(cluster, noon.Add(time.Hour), time.Hour)
	require.NoError(t, err)
	outlived := forge(t, early, pki.Claims{Cluster: cluster, Role: pki.RoleClient, Node: "c1", Scope: "/"})

	got, err := pki.Verify(server, pool(ca), noon, x509.ExtKeyUsageServerAuth)
	require.NoError(t, err)
	require.Equal(t, pki.Claims{Cluster: cluster, Role: pki.RoleChunkserver, Node: "n1", Scope: "/"}, got)
	got, err = pki.Verify(user, pool(ca), noon, x509.ExtKeyUsageClientAuth)
	require.NoError(t, err)
	require.Equal(t, pki.Claims{Cluster: cluster, Role: pki.RoleClient, Node: "c1", Scope: "/home/c1", ReadOnly: true, Squash: true}, got)

	for name, c := range map[string]struct {
		chain [][]byte
		roots *x509.CertPool
		at    time.Time
		use   x509.ExtKeyUsage
		says  string
	}{
		"nothing shown":                       {nil, pool(ca), noon, x509.ExtKeyUsageClientAuth, "no certificate"},
		"not a certificate":                   {[][]byte{{1}}, pool(ca), noon, x509.ExtKeyUsageClientAuth, "x509"},
		"user as a server":                    {user, pool(ca), noon, x509.ExtKeyUsageServerAuth, "a client cannot be a server"},
		"expired":                             {user, pool(ca), noon.AddDate(2, 0, 0), x509.ExtKeyUsageClientAuth, "certificate of client c1 expired on 2027-11-20 12:00 UTC: renew it with `moraine cert renew DIR c1`"},
		"not yet valid":                       {user, pool(ca), noon.AddDate(0, 0, -1), x509.ExtKeyUsageClientAuth, "check the clocks"},
		"an authority to come":                {outlived, pool(early), noon.Add(-time.Minute), x509.ExtKeyUsageClientAuth, "authority of the certificate of client c1 is valid only from"},
		"expired, of another authority":       {user, pool(imposter), noon.AddDate(2, 0, 0), x509.ExtKeyUsageClientAuth, "not issued by an authority that is trusted"},
		"not yet valid, of another authority": {user, pool(imposter), noon.AddDate(0, 0, -1), x509.ExtKeyUsageClientAuth, "not issued by an authority that is trusted"},
		"another authority":                   {user, pool(imposter), noon, x509.ExtKeyUsageClientAuth, "not issued by an authority that is trusted"},
		"the authority":                       {[][]byte{pemDER(t, ca.CertPEM())}, pool(ca), noon, x509.ExtKeyUsageClientAuth, "not a certificate of a node"},
	} {
		_, err := pki.Verify(c.chain, c.roots, c.at, c.use)
		require.ErrorIs(t, err, moraine.Unauthenticated, name)
		require.ErrorContains(t, err, c.says, name)
	}
	_, err = pki.Verify(issue(other, pki.Request{Role: pki.RoleClient, Node: "c1"}), pool(ca, other), noon, x509.ExtKeyUsageClientAuth)
	require.NoError(t, err, "for its own cluster it is good")
	_, err = pki.Verify(forge(t, other, got), pool(ca, other), noon, x509.ExtKeyUsageClientAuth)
	require.ErrorIs(t, err, moraine.Unauthenticated)
	require.ErrorContains(t, err, "another cluster's authority issued it")
}

// forge makes an authority certify claims in a cluster that is not its own.
func forge(t *testing.T, ca *pki.CA, c pki.Claims) [][]byte {
	dir := t.TempDir()
	require.NoError(t, ca.Save(dir))
	keyPEM, err := os.ReadFile(filepath.Join(dir, pki.CAKeyFile))
	require.NoError(t, err)
	key, err := x509.ParsePKCS8PrivateKey(pemDER(t, keyPEM))
	require.NoError(t, err)
	parent, err := x509.ParseCertificate(pemDER(t, ca.CertPEM()))
	require.NoError(t, err)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), URIs: []*url.URL{c.URI()}, NotBefore: noon.Add(-time.Hour), NotAfter: noon.Add(time.Hour),
		BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, key.(crypto.Signer).Public(), key)
	require.NoError(t, err)
	return [][]byte{der}
}

func pemDER(t *testing.T, p []byte) []byte {
	block, _ := pem.Decode(p)
	require.NotNil(t, block)
	return block.Bytes
}

func TestFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	ca := newCA(t)
	require.NoError(t, ca.Save(dir))
	require.ErrorIs(t, ca.Save(dir), moraine.Exists)
	mode := func(name string) os.FileMode {
		st, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		return st.Mode().Perm()
	}
	require.Equal(t, os.FileMode(0o600), mode("ca.key"))

	ca, err := pki.LoadCA(dir)
	require.NoError(t, err)
	require.Equal(t, cluster, ca.Cluster())
	c, err := ca.Issue(pki.Request{Role: pki.RoleClient, Node: "c1", Now: noon})
	require.NoError(t, err)
	require.NoError(t, c.Save(dir, "c1"))
	require.Equal(t, os.FileMode(0o600), mode("c1.key"))
	caPEM, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	require.NoError(t, err)
	require.Equal(t, ca.CertPEM(), caPEM, "the authority is there once")

	id, err := pki.LoadIdentity(pki.FilesIn(dir, "c1"))
	require.NoError(t, err)
	require.Equal(t, c.Claims, id.Claims())
	require.NoError(t, id.Check(noon))
	require.ErrorContains(t, id.Check(noon.AddDate(3, 0, 0)), "renew it")

	require.NoError(t, os.Chmod(filepath.Join(dir, "c1.key"), 0o644))
	_, err = pki.LoadIdentity(pki.FilesIn(dir, "c1"))
	require.ErrorIs(t, err, moraine.PermissionDenied)
	require.ErrorContains(t, err, "chmod 600")
	_, err = pki.LoadIdentity(pki.FilesIn(dir, "nobody"))
	require.ErrorIs(t, err, moraine.NotFound)
	_, err = pki.LoadCA(t.TempDir())
	require.ErrorIs(t, err, moraine.NotFound)
	require.NoError(t, os.Chmod(filepath.Join(dir, "ca.key"), 0o644))
	_, err = pki.LoadCA(dir)
	require.ErrorIs(t, err, moraine.PermissionDenied)
	require.ErrorContains(t, err, "chmod 600")
}

// An identity follows its files; half a rotation changes nothing.
func TestIdentityFollowsItsFiles(t *testing.T) {
	dir := t.TempDir()
	ca := newCA(t)
	issue := func(ca *pki.CA, ttl time.Duration) *pki.Certificate {
		c, err := ca.Issue(pki.Request{Role: pki.RoleClient, Node: "c1", Now: noon, TTL: ttl})
		require.NoError(t, err)
		return c
	}
	require.NoError(t, issue(ca, time.Hour).Save(dir, "c1"))
	id, err := pki.LoadIdentity(pki.FilesIn(dir, "c1"))
	require.NoError(t, err)
	require.Equal(t, noon.Add(time.Hour), id.NotAfter())

	second := issue(ca, 2*time.Hour)
	key := filepath.Join(dir, "c1.key")
	old, err := os.ReadFile(key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(key, append(bytes.Clone(second.KeyPEM), '\n'), 0o600))
	require.Equal(t, noon.Add(time.Hour), id.NotAfter(), "the key does not match yet")
	require.NoError(t, os.WriteFile(key, append(bytes.Clone(old), '\n', '\n'), 0o600))
	require.Equal(t, noon.Add(time.Hour), id.NotAfter())
	require.NoError(t, second.Save(dir, "c1"))
	require.Equal(t, noon.Add(2*time.Hour), id.NotAfter())

	// A new authority of the same cluster joins the old one in ca.crt.
	next, err := pki.NewCA(cluster, noon, 20*365*24*time.Hour)
	require.NoError(t, err)
	require.NoError(t, issue(next, 3*time.Hour).Save(dir, "c1"))
	require.Equal(t, noon.Add(3*time.Hour), id.NotAfter())
	_, _, roots := id.Current()
	_, err = pki.Verify(chain(t, second), roots, noon, x509.ExtKeyUsageClientAuth)
	require.NoError(t, err, "certificates of the old authority are still good")

	// The identity does not follow another cluster's certificate in their place.
	other, err := pki.NewCA(moraine.UUID{9}, noon, time.Hour)
	require.NoError(t, err)
	require.NoError(t, issue(other, 30*time.Minute).Save(dir, "c1"))
	require.Equal(t, noon.Add(3*time.Hour), id.NotAfter())
}

func TestIssueRefuses(t *testing.T) {
	ca := newCA(t)
	for _, r := range []pki.Request{
		{Role: "king", Node: "a"}, {Role: pki.RoleClient}, {Role: pki.RoleClient, Node: "a b"},
		{Role: pki.RoleClient, Node: "a", Scope: "x"}, {Role: pki.RoleChunkserver, Node: "n1", ReadOnly: true},
	} {
		r.Now = noon
		_, err := ca.Issue(r)
		require.ErrorIs(t, err, moraine.InvalidArgument, "%+v", r)
	}
	c, err := ca.Issue(pki.Request{Role: pki.RoleClient, Node: "a", Now: noon, TTL: 100 * 365 * 24 * time.Hour})
	require.NoError(t, err)
	require.Equal(t, noon.Add(10*365*24*time.Hour), c.NotAfter, "no longer than its authority")
	_, err = pki.NewCA(moraine.UUID{}, noon, time.Hour)
	require.ErrorIs(t, err, moraine.InvalidArgument)
}

// A certificate that claims to be confined, of a role that is not, is neither
// issued nor accepted: an administrator's scope would have no effect.
func TestOnlyClientsAreConfined(t *testing.T) {
	for _, role := range []pki.Role{pki.RoleMetadata, pki.RoleChunkserver, pki.RoleAdmin, pki.RoleGateway, pki.RoleClient} {
		confined := role == pki.RoleGateway || role == pki.RoleClient
		for what, c := range map[string]pki.Claims{
			"a scope":   {Cluster: moraine.UUID{1}, Role: role, Node: "x", Scope: "/a"},
			"read-only": {Cluster: moraine.UUID{1}, Role: role, Node: "x", Scope: "/", ReadOnly: true},
			"squashed":  {Cluster: moraine.UUID{1}, Role: role, Node: "x", Scope: "/", Squash: true},
		} {
			if err := c.Validate(); (err == nil) != confined {
				t.Errorf("%s with %s: %v", role, what, err)
			}
			if _, err := pki.ParseURI(c.URI()); (err == nil) != confined {
				t.Errorf("%s with %s, as shown: %v", role, what, err)
			}
		}
		ca, err := pki.NewCA(moraine.UUID{1}, time.Now(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		c, err := ca.Issue(pki.Request{Role: role, Node: "x", Now: time.Now()})
		if err != nil || c.Claims.Squash != confined {
			t.Errorf("%s is issued squashed: %v, %v", role, c.Claims.Squash, err)
		}
		bare, err := pki.ParseURI(&url.URL{Scheme: "moraine", Host: c.Claims.Cluster.String(), Path: "/" + string(role) + "/x"})
		if err != nil || bare.Squash != confined {
			t.Errorf("%s that says nothing is squashed: %v, %v", role, bare.Squash, err)
		}
	}
}
