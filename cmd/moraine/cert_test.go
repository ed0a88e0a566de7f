package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/pki"
)

// TestCertShowOfAnExpiredCertificate: a certificate that has expired is shown, and said to
// have; so is one of an authority that has expired with it.
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
		infos := make([]certificateInfo, 2)
		lines := json.NewDecoder(strings.NewReader(out))
		require.NoError(t, lines.Decode(&infos[0]))
		require.NoError(t, lines.Decode(&infos[1]))
		require.True(t, infos[0].Expired)
		require.Equal(t, life == 24*time.Hour, infos[1].Expired, what)
		require.NotEmpty(t, infos[0].Key)
	}
}

// TestAWrongAuthorityIsNotAWrongClock: a command under a certificate of an authority that
// does not fit says so, and speaks of no time, whether it has expired or is to come.
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
