package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/cmd/moraine/internal/certcmd"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/stretchr/testify/require"
)

// TestCertShowOfAnExpiredCertificate: `cert show` shows a certificate as expired, also one
// of an authority that has expired with it.
func TestCertShowOfAnExpiredCertificate(t *testing.T) {
	now := time.Now()
	for what, life := range map[string]time.Duration{"the certificate alone": 240 * time.Hour, "the authority too": 24 * time.Hour} {
		ca, err := pki.NewCA(moraine.UUID{1}, now.Add(-100*time.Hour), life)
		require.NoError(t, err)
		dir := t.TempDir()
		require.NoError(t, ca.Save(dir))
		for name, ttl := range map[string]time.Duration{"old": 20 * time.Hour, "good": 200 * time.Hour} {
			c, err := ca.Issue(pki.Request{Role: pki.RoleClient, Node: name, Now: now.Add(-90 * time.Hour), TTL: ttl})
			require.NoError(t, err)
			require.NoError(t, c.Save(dir, name))
		}
		out, errOut, code := invoke(t, "cert", "show", dir, "old")
		require.Zero(t, code, "%s: %s", what, errOut)
		require.Contains(t, out, "EXPIRED on "+now.Add(-70*time.Hour).UTC().Format(time.DateOnly), what)
		out, errOut, code = invoke(t, "cert", "show", dir, "old", "good", "--json")
		require.Zero(t, code, "%s: %s", what, errOut)
		infos := make([]certcmd.Certificate, 2)
		lines := json.NewDecoder(strings.NewReader(out))
		require.NoError(t, lines.Decode(&infos[0]))
		require.NoError(t, lines.Decode(&infos[1]))
		require.True(t, infos[0].Expired)
		require.Equal(t, life == 24*time.Hour, infos[1].Expired, what)
		require.NotEmpty(t, infos[0].Key)
	}
}

// TestAWrongAuthorityIsNotAWrongClock: the error of a certificate from another authority
// names the authority. It names no time, whether the certificate has expired or is not
// valid yet.
func TestAWrongAuthorityIsNotAWrongClock(t *testing.T) {
	now := time.Now()
	ca, err := pki.NewCA(moraine.UUID{1}, now.Add(-100*time.Hour), 1000*time.Hour)
	require.NoError(t, err)
	other, err := pki.NewCA(moraine.UUID{1}, now.Add(-100*time.Hour), 1000*time.Hour)
	require.NoError(t, err)
	for what, at := range map[string]time.Time{"expired": now.Add(-50 * time.Hour), "good": now, "to come": now.Add(50 * time.Hour)} {
		dir := t.TempDir()
		c, err := other.Issue(pki.Request{Role: pki.RoleClient, Node: "c1", Now: at, TTL: 20 * time.Hour})
		require.NoError(t, err)
		require.NoError(t, c.Save(dir, "c1"))
		require.NoError(t, os.WriteFile(pki.FilesIn(dir, "c1").CA, ca.CertPEM(), 0o644))
		_, errOut, code := invoke(t, "ls", "moraine://127.0.0.1:1/", "--certs", dir, "--identity", "c1")
		require.NotZero(t, code)
		require.Contains(t, errOut, "not issued by an authority", what)
		require.NotContains(t, errOut, "clock", what)
		require.NotContains(t, errOut, "expired", what)
	}
}

// TestCertRenewOfAnExpiredCertificate: `cert renew` renews an expired certificate with the
// same key and the same claims. The server then accepts the client that it refused. An
// expired authority renews and issues nothing: the error says what to do, and the
// certificate on disk stays.
func TestCertRenewOfAnExpiredCertificate(t *testing.T) {
	now := time.Now()
	expired := func(life time.Duration) (dir string) {
		ca, err := pki.NewCA(moraine.UUID{1}, now.Add(-100*time.Hour), life)
		require.NoError(t, err)
		dir = t.TempDir()
		require.NoError(t, ca.Save(dir))
		c, err := ca.Issue(pki.Request{Role: pki.RoleClient, Node: "old", Scope: "/a", ReadOnly: true, Now: now.Add(-90 * time.Hour), TTL: 20 * time.Hour})
		require.NoError(t, err)
		require.NoError(t, c.Save(dir, "old"))
		return dir
	}
	show := func(dir string) (info certcmd.Certificate) {
		out, errOut, code := invoke(t, "cert", "show", dir, "old", "--json")
		require.Zero(t, code, errOut)
		require.NoError(t, json.Unmarshal([]byte(out), &info))
		return info
	}
	dir := expired(10_000 * time.Hour)
	before := show(dir)
	require.True(t, before.Expired)
	_, errOut, code := invoke(t, "cert", "renew", dir, "old", "--days", "30")
	require.Zero(t, code, errOut)
	after := show(dir)
	require.False(t, after.Expired)
	require.WithinDuration(t, now.Add(30*24*time.Hour), after.Expires, time.Hour)
	require.Equal(t, before.Key, after.Key)
	require.Equal(t, []any{before.Name, before.Role, before.Cluster, before.Scope, before.ReadOnly, before.Squash},
		[]any{after.Name, after.Role, after.Cluster, after.Scope, after.ReadOnly, after.Squash})
	id, err := pki.LoadIdentity(pki.FilesIn(dir, "old"))
	require.NoError(t, err)
	renewed, _, _ := id.Current()
	require.True(t, renewed.Leaf.NotAfter.After(now))

	dir = expired(24 * time.Hour)
	before = show(dir)
	for _, args := range [][]string{{"cert", "renew", dir, "old"}, {"cert", "issue", dir, "client", "new"}} {
		_, errOut, code = invoke(t, args...)
		require.NotZero(t, code, "%v", args)
		require.Contains(t, errOut, "authority expired on "+now.Add(-76*time.Hour).UTC().Format(time.DateOnly))
		require.Contains(t, errOut, "moraine cert init")
	}
	require.Equal(t, before, show(dir))
	require.NoFileExists(t, pki.FilesIn(dir, "new").Cert)
}
