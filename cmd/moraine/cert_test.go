package main

import (
	"encoding/json"
	"os"
	"path/filepath"
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
		ends := now.Add(min(-90*time.Hour+20*time.Hour, -100*time.Hour+life)) // with its authority at the latest
		require.Contains(t, out, "EXPIRED on "+ends.UTC().Format(time.DateOnly), what)
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

// TestCertIssueReplacesNothing: `cert issue` leaves an existing certificate or key of the name
// alone, and says what to do. With --force it replaces both, and names the former certificate.
func TestCertIssueReplacesNothing(t *testing.T) {
	ca := filepath.Join(t.TempDir(), "ca")
	for _, args := range [][]string{{"cert", "init", ca}, {"cert", "issue", ca, "admin", "ops"}} {
		_, errOut, code := invoke(t, args...)
		require.Zero(t, code, errOut)
	}
	files := pki.FilesIn(ca, "ops")
	read := func(paths ...string) (all []string) {
		for _, path := range paths {
			b, err := os.ReadFile(path)
			require.NoError(t, err)
			all = append(all, string(b))
		}
		return all
	}
	before := read(files.Cert, files.Key, files.CA)
	for _, role := range []string{"admin", "client"} {
		_, errOut, code := invoke(t, "cert", "issue", ca, role, "ops")
		require.NotZero(t, code)
		for _, says := range []string{"already has a certificate", "moraine cert renew", "--out", "--force"} {
			require.Contains(t, errOut, says)
		}
	}
	require.Equal(t, before, read(files.Cert, files.Key, files.CA))

	other := t.TempDir()
	_, errOut, code := invoke(t, "cert", "issue", ca, "admin", "ops", "--out", other)
	require.Zero(t, code, errOut)
	require.Equal(t, before, read(files.Cert, files.Key, files.CA))

	id, err := pki.LoadIdentity(files)
	require.NoError(t, err)
	held, _, _ := id.Current()
	serial := pki.SerialOf(held.Leaf)
	out, errOut, code := invoke(t, "cert", "issue", ca, "admin", "ops", "--force")
	require.Zero(t, code, errOut)
	require.Contains(t, out, "moraine cert revoke --serial "+serial)
	require.NotEqual(t, before[1], read(files.Key)[0])

	require.NoError(t, os.Remove(files.Cert)) // the key alone is as valuable
	_, errOut, code = invoke(t, "cert", "issue", ca, "admin", "ops")
	require.NotZero(t, code)
	require.Contains(t, errOut, "--force")
}

// TestAClockThatIsAheadIsNamed: an authority and a certificate that are not valid yet, because a
// clock was ahead when they were made. Issue, renew and start of a program say so.
func TestAClockThatIsAheadIsNamed(t *testing.T) {
	now := time.Now()
	refused := func(args ...string) {
		t.Helper()
		_, errOut, code := invoke(t, args...)
		require.NotZero(t, code, "%v", args)
		require.Contains(t, errOut, "valid only from", "%v", args)
		require.Contains(t, errOut, "check the clocks", "%v", args)
	}
	made := func(authority, certificate time.Time) (dir string) {
		ca, err := pki.NewCA(moraine.UUID{1}, authority, 1000*time.Hour)
		require.NoError(t, err)
		dir = t.TempDir()
		require.NoError(t, ca.Save(dir))
		for _, r := range []pki.Request{{Role: pki.RoleClient, Node: "c1"}, {Role: pki.RoleChunkserver, Node: "n1"}} {
			r.Now, r.TTL = certificate, 100*time.Hour
			c, err := ca.Issue(r)
			require.NoError(t, err)
			require.NoError(t, c.Save(dir, r.Node))
		}
		return dir
	}
	dir := made(now.Add(3*time.Hour), now.Add(3*time.Hour))
	refused("cert", "issue", dir, "client", "c2")
	require.NoFileExists(t, pki.FilesIn(dir, "c2").Cert)
	refused("cert", "renew", dir, "c1")

	dir = made(now.Add(-time.Hour), now.Add(3*time.Hour))
	refused("ls", "moraine://127.0.0.1:1/", "--certs", dir, "--identity", "c1")
	refused("chunkserver", "--certs", dir, "--identity", "n1", "--id", "n1", "--device", t.TempDir(), "--endpoint", "127.0.0.1:1")
	out, errOut, code := invoke(t, "cert", "show", dir, "c1")
	require.Zero(t, code, errOut)
	require.Contains(t, out, "NOT VALID before")
	_, errOut, code = invoke(t, "cert", "renew", dir, "c1")
	require.Zero(t, code, errOut)
	out, errOut, code = invoke(t, "cert", "show", dir, "c1")
	require.Zero(t, code, errOut)
	require.NotContains(t, out, "NOT VALID")
}
