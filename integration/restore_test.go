package integration_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/morainefs/moraine/integration/procs"
	"github.com/stretchr/testify/require"
)

// The metadata of a cluster comes back after the disks of two of its servers are
// lost (force-quorum), and after all are (from a backup), with the bytes of the
// files that the chunkservers hold.
func TestMetadataComesBack(t *testing.T) {
	c := startProcs(t, procs.Config{Chunkservers: 1})
	env := settingsFor(c)
	dir := t.TempDir()
	put := func(name string) {
		t.Helper()
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, bytes.Repeat([]byte(name), 100_000), 0o644))
		works(t, env, "cp", file, "moraine:///"+name)
	}
	same := func(names ...string) {
		t.Helper()
		for _, name := range names {
			require.Equal(t, string(bytes.Repeat([]byte(name), 100_000)), works(t, env, "cat", "moraine:///"+name))
		}
	}
	put("before")
	backup := filepath.Join(dir, "metadata.backup")
	works(t, env, "metadata", "backup", backup)
	require.NotZero(t, invoke(t, env, "metadata", "backup", backup).code, "a backup is not written over")
	put("after")

	m := c.Nodes(procs.Metadata)
	stopAll := func() {
		t.Helper()
		for _, n := range m {
			require.NoError(t, n.Kill())
		}
	}
	lose := func(n *procs.Node) { require.NoError(t, os.RemoveAll(filepath.Join(n.Dir, "data"))) }
	data := filepath.Join(m[0].Dir, "data")
	stopAll() // what they applied lies in their logs alone
	look := invoke(t, nil, "metadata", "force-quorum", "--id", "m1", "--data", data, "--address", m[0].Address)
	require.Equal(t, 2, look.code)
	require.Contains(t, look.stdout, "WARNING: what the others acknowledged after that entry is lost")
	require.Contains(t, look.stderr, "--i-accept-the-loss")
	report := objects(t, invoke(t, nil, "metadata", "force-quorum", "--id", "m1", "--data", data, "--address", m[0].Address, "--json").stdout)
	require.Equal(t, false, report[0]["forced"])
	require.Contains(t, report[0]["warning"], "acknowledged after that entry is lost")
	deaf := invoke(t, nil, "metadata", "force-quorum", "--id", "m1", "--data", data, "--address", m[0].Address, "--i-accept-the-loss")
	require.Equal(t, 2, deaf.code, "without certificates the chunkservers cannot be asked")
	require.Contains(t, deaf.stderr, "--after-incarnation")
	done := invoke(t, env, "metadata", "force-quorum", "--id", "m1", "--data", data, "--address", m[0].Address, "--i-accept-the-loss", "--json")
	require.Zero(t, done.code, done.stderr)
	require.Contains(t, done.stderr, "WARNING: what the others acknowledged after that entry is lost")
	report = objects(t, done.stdout)
	require.Equal(t, true, report[0]["forced"])
	require.EqualValues(t, 2, report[0]["incarnation"])
	require.NotEmpty(t, report[0]["warning"])
	require.NoError(t, m[0].Start())
	require.NoError(t, m[0].Ready(t.Context()))
	same("before", "after")
	put("forced")
	// The others were not lost after all, and somebody starts them.
	for _, n := range m[1:] {
		require.NoError(t, n.Start())
	}
	for _, n := range m[1:] {
		select {
		case <-n.Exited():
			require.Contains(t, n.LogTail(5), "an empty --data")
		case <-time.After(time.Minute):
			t.Fatalf("%s goes on", n.Name)
		}
	}
	put("later")
	same("before", "after", "forced", "later")

	stopAll()
	require.Contains(t, works(t, env, "inspect", "log", data, "--json"), `"raise_incarnation`)
	works(t, env, "inspect", "snapshot", data)
	require.Contains(t, works(t, env, "inspect", "state", data), "the state after entry") // it was killed: the log has the rest
	lose(m[0])
	damaged := filepath.Join(dir, "damaged")
	p, err := os.ReadFile(backup)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(damaged, p[:len(p)-1], 0o600))
	no := invoke(t, nil, "metadata", "restore", backup, "--id", "m1", "--data", data, "--address", m[0].Address)
	require.Equal(t, 2, no.code)
	require.Contains(t, no.stderr, "The backup is of 1")
	require.NoDirExists(t, data)
	no = invoke(t, nil, "metadata", "restore", damaged, "--id", "m1", "--data", data, "--address", m[0].Address)
	require.Equal(t, 1, no.code)
	require.Contains(t, no.stderr, damaged)
	require.Contains(t, no.stderr, "cut short")
	works(t, nil, "metadata", "restore", backup, "--id", "m1", "--data", data, "--address", m[0].Address, "--after-incarnation", "2")
	require.NoError(t, m[0].Start())
	require.NoError(t, m[0].Ready(t.Context()))
	deadline := time.Now().Add(time.Minute)
	for invoke(t, env, "cat", "moraine:///before").code != 0 {
		require.True(t, time.Now().Before(deadline))
	}
	same("before")
	require.NotZero(t, invoke(t, env, "cat", "moraine:///after").code, "what came after the backup is gone")
	put("restored")
	same("restored")
	rows := objects(t, works(t, env, "metadata", "status", "--json"))
	require.EqualValues(t, 3, rows[0]["incarnation"])
}
