package integration_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/transport/pki"
)

// waitStatus queries the status until it is as wanted, and returns it.
func waitStatus(t *testing.T, env []string, what string, is func(status map[string]any) bool) map[string]any {
	t.Helper()
	var last map[string]any
	require.Eventually(t, func() bool {
		o := invoke(t, env, "cluster", "status", "--json")
		if o.code != 0 && o.code != 3 {
			return false
		}
		last = objects(t, o.stdout)[0]
		require.Equal(t, last["health"] == "green", o.code == 0, "the exit code goes with the status")
		return is(last)
	}, time.Minute, 200*time.Millisecond, what)
	return last
}

// A cluster is not green while its bucket hangs, nor with a certificate that
// expires within 7 days. It is green again when the bucket answers and the
// certificate is renewed. An expired certificate can be shown, and renewed.
func TestStatusOfTheBucketAndOfCertificates(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 2, ObjectServer: true})
	env := settingsFor(c)
	works(t, env, "cluster", "status", "--wait", "1m")

	store := c.Nodes(devcluster.ObjectServer)[0]
	require.NoError(t, store.Signal(syscall.SIGSTOP))
	hangs := waitStatus(t, env, "the bucket hangs", func(s map[string]any) bool { return s["health"] != "green" })
	bucket := objectsIn(hangs["buckets"])[0]
	require.Equal(t, "failing", bucket["status"])
	require.NotEmpty(t, bucket["error"])
	require.Equal(t, 3, invoke(t, env, "cluster", "status", "--wait", "2s").code)
	require.Contains(t, works(t, env, "tier", "status"), "does not answer")
	require.NoError(t, store.Signal(syscall.SIGCONT))
	works(t, env, "cluster", "status", "--wait", "1m")

	n1 := c.Node("n1")
	reissue := func(ttl time.Duration) {
		ca, err := pki.LoadCA(c.Certs())
		require.NoError(t, err)
		id, err := pki.LoadIdentity(pki.FilesIn(c.Certs(), "n1"))
		require.NoError(t, err)
		cert, err := ca.Renew(id, time.Now(), ttl)
		require.NoError(t, err)
		require.NoError(t, cert.Save(c.Certs(), "n1"))
	}
	reissue(6 * 24 * time.Hour)
	soon := waitStatus(t, env, "a certificate expires within 7 days", func(s map[string]any) bool { return s["health"] == "degraded" })
	require.Contains(t, soon["findings"].([]any)[0], "the certificate of chunkserver n1 expires on")
	require.True(t, n1.Running())
	works(t, env, "cert", "renew", c.Certs(), "n1")
	works(t, env, "cluster", "status", "--wait", "1m")

	old := filepath.Join(t.TempDir(), "old")
	require.NoError(t, os.CopyFS(old, os.DirFS(c.Certs())))
	require.NoError(t, os.Chmod(filepath.Join(old, "ca.key"), 0o600)) // CopyFS leaves it readable by others
	ca, err := pki.LoadCA(old)
	require.NoError(t, err)
	cert, err := ca.Issue(pki.Request{Role: pki.RoleClient, Node: "gone", Now: time.Now().Add(-time.Minute), TTL: time.Second})
	require.NoError(t, err)
	require.NoError(t, cert.Save(old, "gone"))
	require.Contains(t, works(t, env, "cert", "show", old, "gone"), "EXPIRED on")

	// Its permissions return once it is renewed, and not before.
	as := append(slices.Clone(env), "MORAINE_CERTS="+old, "MORAINE_IDENTITY=gone")
	refused := invoke(t, as, "ls", "moraine:///")
	require.NotZero(t, refused.code)
	require.Contains(t, refused.stderr, "expired on")
	require.Contains(t, refused.stderr, "moraine cert renew")
	works(t, env, "cert", "renew", old, "gone")
	works(t, as, "ls", "moraine:///")
}

// tierProbed is what `tier status` reports about the only bucket.
func tierProbed(t *testing.T, env []string) []map[string]any {
	t.Helper()
	return objectsIn(objects(t, works(t, env, "tier", "status", "--json"))[0]["probed"])
}

// `tier status` shows the traits of a bucket that movers have probed; unprobed ones
// are unknown. After a change of the metadata leader they are unknown until the
// movers have reported again.
func TestTierStatusSaysWhatWasProbed(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1, ObjectServer: true})
	env := settingsFor(c)
	works(t, env, "cluster", "status", "--wait", "1m")
	require.Empty(t, tierProbed(t, env))
	require.Contains(t, works(t, env, "tier", "status"), "is unknown")

	local := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(local, pattern(1<<20, 1), 0o600))
	works(t, env, "cp", local, "moraine:///f")
	works(t, env, "flush", "--wait", "moraine:///f")
	b, _ := bucketOf(t, c)
	traits, err := b.Traits(t.Context())
	require.NoError(t, err)
	require.True(t, traits.WholeCRC && traits.IfNoneMatch && traits.IfMatch, "the local store has all of them: %+v", traits)
	probed := func() bool {
		p := tierProbed(t, env)
		if len(p) == 0 {
			return false
		}
		require.Len(t, p, 1)
		require.Contains(t, p[0]["bucket"], "s3://moraine")
		require.Equal(t, []any{"store CRC", true, true}, []any{p[0]["verified"], p[0]["if_none_match"], p[0]["if_match"]})
		return true
	}
	require.Eventually(t, probed, time.Minute, 200*time.Millisecond)
	text := works(t, env, "tier", "status")
	require.NotContains(t, text, "is unknown")
	require.Contains(t, text, "If-None-Match yes, If-Match yes")

	// The next leader knows nothing, shows that, and gets the report within
	// seconds.
	m1 := c.Node("m1")
	require.NoError(t, m1.Kill())
	require.NoError(t, m1.Start())
	require.Eventually(t, func() bool { return invoke(t, env, "tier", "status").code == 0 }, time.Minute, 50*time.Millisecond)
	if text := works(t, env, "tier", "status"); !strings.Contains(text, "If-Match yes") {
		require.Contains(t, text, "is unknown")
	}
	require.Eventually(t, probed, time.Minute, 200*time.Millisecond)
}

// `cluster status --wait` waits for a cluster that does not answer yet, ends when
// its time is over, and ends at once when it is interrupted.
func TestStatusWaitsForAClusterThatIsAway(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1})
	env := settingsFor(c)
	works(t, env, "cluster", "status", "--wait", "1m")
	m1 := c.Node("m1")
	require.NoError(t, m1.Kill())
	require.Equal(t, 1, invoke(t, env, "cluster", "status", "--wait", "1s").code)

	waiting := command(t, env, "cluster", "status", "--wait", "10m")
	require.NoError(t, waiting.Start())
	time.Sleep(500 * time.Millisecond)
	require.NoError(t, waiting.Process.Signal(os.Interrupt))
	require.Error(t, waiting.Wait())
	require.Equal(t, 1, waiting.ProcessState.ExitCode())

	waiting = command(t, env, "cluster", "status", "--wait", "2m")
	require.NoError(t, waiting.Start())
	time.Sleep(16 * time.Second) // longer than the timeout of one query
	require.NoError(t, m1.Start())
	require.NoError(t, waiting.Wait(), "it waits for the server, and for the cluster to be green")
}
