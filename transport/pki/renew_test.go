package pki_test

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/stretchr/testify/require"
)

// For a certificate of another authority the error says that at any time, and does
// not blame the clock.
func TestAWrongAuthorityIsNoWrongClock(t *testing.T) {
	mine, other := newCA(t), newCA(t)
	issued := noon.AddDate(1, 0, 0) // the authorities are older
	cert, err := other.Issue(pki.Request{Role: pki.RoleMetadata, Node: "m1", Now: issued})
	require.NoError(t, err)
	for _, at := range []time.Time{noon, issued, issued.AddDate(2, 0, 0)} {
		_, err := pki.Verify(chain(t, cert), pool(mine), at, x509.ExtKeyUsageServerAuth)
		require.ErrorIs(t, err, moraine.Unauthenticated)
		require.ErrorContains(t, err, "was not issued by an authority that is trusted here")
		require.NotContains(t, err.Error(), "clock")
	}
	dir := t.TempDir()
	require.NoError(t, mine.Save(dir)) // its ca.crt lies beside a certificate of the other
	require.NoError(t, cert.Save(filepath.Join(dir, "of-other"), "m1"))
	files := pki.FilesIn(filepath.Join(dir, "of-other"), "m1")
	files.CA = filepath.Join(dir, pki.CACertFile)
	_, err = pki.LoadIdentity(files)
	require.ErrorContains(t, err, "was not issued by an authority that is trusted here")
	_, err = pki.Verify(chain(t, cert), pool(other), noon, x509.ExtKeyUsageServerAuth)
	require.ErrorContains(t, err, "check the clocks", "its own authority: it is the clock")
}

// An expired certificate can be renewed, with the same claims, names and key.
func TestRenew(t *testing.T) {
	ca, dir := newCA(t), t.TempDir()
	r := pki.Request{Role: pki.RoleClient, Node: "c1", Scope: "/a", ReadOnly: true, NoSquash: true, Hosts: []string{"h1", "10.0.0.1"}, Now: noon, TTL: time.Hour}
	cert, err := ca.Issue(r)
	require.NoError(t, err)
	require.NoError(t, cert.Save(dir, "c1"))
	id, err := pki.LoadIdentity(pki.FilesIn(dir, "c1"))
	require.NoError(t, err)
	later := noon.AddDate(0, 1, 0)
	require.ErrorContains(t, id.Check(later), "moraine cert renew DIR c1")
	renewed, err := ca.Renew(id, later, 48*time.Hour)
	require.NoError(t, err)
	require.Equal(t, cert.Claims, renewed.Claims)
	require.Equal(t, cert.KeyPEM, renewed.KeyPEM)
	require.NoError(t, renewed.Save(dir, "c1"))
	require.NoError(t, id.Check(later))
	require.Equal(t, later.Add(48*time.Hour), id.NotAfter().UTC())
	again, _, _ := id.Current()
	require.Equal(t, []string{"h1"}, again.Leaf.DNSNames)
	require.Len(t, again.Leaf.IPAddresses, 1)
	stranger, err := pki.NewCA(moraine.UUID{9}, noon, time.Hour)
	require.NoError(t, err)
	_, err = stranger.Renew(id, later, time.Hour)
	require.ErrorIs(t, err, moraine.WrongCluster)
}

// A forger can make an authority with the cluster's id and write any role into a
// certificate. Such a certificate is not renewed, whatever ca.crt is beside it.
func TestAForgedCertificateIsNotRenewed(t *testing.T) {
	ca, forger, dir := newCA(t), newCA(t), t.TempDir()
	require.Equal(t, ca.Cluster(), forger.Cluster())
	cert, err := forger.Issue(pki.Request{Role: pki.RoleAdmin, Node: "alice", Now: noon})
	require.NoError(t, err)
	require.NoError(t, cert.Save(dir, "alice"))
	id, err := pki.LoadIdentity(pki.FilesIn(dir, "alice"))
	require.NoError(t, err)
	_, err = ca.Renew(id, noon, time.Hour)
	require.ErrorIs(t, err, moraine.Unauthenticated)

	// An authority that was replaced has its certificates renewed as long as ca.crt has it.
	old := newCA(t)
	authority, user := filepath.Join(dir, "ca"), filepath.Join(dir, "user")
	require.NoError(t, ca.Save(authority))
	cert, err = old.Issue(pki.Request{Role: pki.RoleClient, Node: "bob", Scope: "/bob", Now: noon})
	require.NoError(t, err)
	require.NoError(t, cert.Save(user, "bob"))
	if id, err = pki.LoadIdentity(pki.FilesIn(user, "bob")); err != nil {
		t.Fatal(err)
	}
	_, err = ca.Renew(id, noon, time.Hour)
	require.ErrorIs(t, err, moraine.Unauthenticated)
	f, err := os.OpenFile(filepath.Join(authority, pki.CACertFile), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.Write(old.CertPEM())
	require.NoError(t, err)
	require.NoError(t, f.Close())
	rotated, err := pki.LoadCA(authority)
	require.NoError(t, err)
	renewed, err := rotated.Renew(id, noon, time.Hour)
	require.NoError(t, err)
	require.Equal(t, cert.Claims, renewed.Claims)
}

// No certificate takes the place of the authority's files.
func TestNoCertificateReplacesTheAuthority(t *testing.T) {
	ca, dir := newCA(t), t.TempDir()
	require.NoError(t, ca.Save(dir))
	for _, name := range []string{"ca", "CA"} {
		cert, err := ca.Issue(pki.Request{Role: pki.RoleClient, Node: name, Now: noon})
		require.NoError(t, err)
		require.ErrorIs(t, cert.Save(dir, name), moraine.InvalidArgument)
	}
	after, err := pki.LoadCA(dir)
	require.NoError(t, err)
	require.Equal(t, ca.CertPEM(), after.CertPEM())
}

// TestSaveNewReplacesNothing: SaveNew fails if the certificate or the key of the name exists.
func TestSaveNewReplacesNothing(t *testing.T) {
	now := time.Now()
	ca, err := pki.NewCA(cluster, now, time.Hour)
	require.NoError(t, err)
	cert, err := ca.Issue(pki.Request{Role: pki.RoleClient, Node: "c1", Now: now})
	require.NoError(t, err)
	for _, there := range []string{"c1.crt", "c1.key"} {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, there), []byte("mine"), 0o600))
		require.ErrorIs(t, cert.SaveNew(dir, "c1"), moraine.Exists)
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, entries, 1)
		b, err := os.ReadFile(filepath.Join(dir, there))
		require.NoError(t, err)
		require.Equal(t, "mine", string(b))
		require.NoError(t, cert.SaveNew(dir, "c2"))
		require.ErrorIs(t, cert.SaveNew(dir, "c2"), moraine.Exists)
		require.ErrorIs(t, cert.SaveNew(dir, "ca"), moraine.InvalidArgument)
	}
}
