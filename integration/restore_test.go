package integration_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/stretchr/testify/require"
)

// The metadata of a cluster comes back after the disks of two of its servers are
// lost (force-quorum), and after all are lost (from a backup). The bytes of the
// files on the chunkservers come back with it.
func TestMetadataComesBack(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Chunkservers: 1})
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

	m := c.Nodes(devcluster.Metadata)
	stopAll := func() {
		t.Helper()
		for _, n := range m {
			require.NoError(t, n.Kill())
		}
	}
	lose := func(n *devcluster.Node) { require.NoError(t, os.RemoveAll(filepath.Join(n.Dir, "data"))) }
	data := filepath.Join(m[0].Dir, "data")
	stopAll() // only their logs have what they applied
	look := invoke(t, nil, "metadata", "force-quorum", "--id", "m1", "--data", data, "--address", m[0].Address)
	require.Equal(t, 2, look.code)
	require.Contains(t, look.stdout, "WARNING: what the others acknowledged after that entry is lost")
	require.Contains(t, look.stderr, "--i-accept-the-loss")
	report := objects(t, invoke(t, nil, "metadata", "force-quorum", "--id", "m1", "--data", data, "--address", m[0].Address, "--json").stdout)
	require.Equal(t, false, report[0]["forced"])
	require.Contains(t, report[0]["warning"], "acknowledged after that entry is lost")
	deaf := invoke(t, nil, "metadata", "force-quorum", "--id", "m1", "--data", data, "--address", m[0].Address, "--i-accept-the-loss")
	require.Equal(t, 2, deaf.code, "without certificates the command cannot query the chunkservers")
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

	taken := objects(t, works(t, env, "metadata", "backup", filepath.Join(dir, "later.backup"), "--json"))[0] // m1, which is alone, keeps its snapshot

	stopAll()
	require.Contains(t, works(t, env, "inspect", "log", data, "--json"), `"raise_incarnation`)
	inspectSnapshot(t, data, "m1="+m[0].Address, taken["applied"].(float64))
	inspectState(t, data, "before", "after", "forced", "later")
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
	done = invoke(t, nil, "metadata", "restore", backup, "--id", "m1", "--data", data, "--address", m[0].Address, "--after-incarnation", "2")
	require.Zero(t, done.code, done.stderr)
	require.Contains(t, done.stdout, "is accepted again")
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

// inspectSnapshot inspects the snapshots of a stopped server, one of which is at
// the log index of a backup.
func inspectSnapshot(t *testing.T, data, member string, applied float64) {
	t.Helper()
	out := works(t, nil, "inspect", "snapshot", data, "--json")
	listing{args: "inspect snapshot", keys: "name index term applied bytes received members"}.hold(t, out)
	all := objects(t, out)
	for _, s := range all {
		require.Positive(t, s["index"])
		require.Positive(t, s["term"])
		require.Positive(t, s["bytes"])
		require.GreaterOrEqual(t, s["applied"], s["index"])
	}
	newest := all[len(all)-1]
	require.Equal(t, applied, newest["applied"])
	require.Equal(t, []any{member}, newest["members"])
	require.Contains(t, works(t, nil, "inspect", "snapshot", data), fmt.Sprintf("up to entry %.0f", newest["index"]))
}

// inspectState inspects the state of a stopped server: the contents of the tables,
// and the pairs of the table of directory entries, which must have these names.
func inspectState(t *testing.T, data string, names ...string) {
	t.Helper()
	const entries, signingKeys = "000011", "000002"
	require.Contains(t, works(t, nil, "inspect", "state", data), "the state after entry")
	out := works(t, nil, "inspect", "state", data, "--json")
	listing{args: "inspect state", keys: "table pairs bytes"}.hold(t, out)
	pairs := map[string]float64{}
	for _, row := range objects(t, out) {
		pairs[row["table"].(string)] = row["pairs"].(float64)
	}
	require.EqualValues(t, len(names), pairs[entries])
	out = works(t, nil, "inspect", "state", data, "--check", "--json")
	listing{args: "inspect state --check", keys: "applied problems"}.hold(t, out)
	require.Empty(t, objects(t, out)[0]["problems"], "the server was killed")
	requireRefused(t, invoke(t, nil, "inspect", "state", data, "--check", "--key", entries), 2, "--check")

	out = works(t, nil, "inspect", "state", data, "--key", "0000 11", "--json")
	listing{args: "inspect state --key", keys: "key value"}.hold(t, out)
	var have []string
	for _, pair := range objects(t, out) {
		key, err := hex.DecodeString(pair["key"].(string))
		require.NoError(t, err)
		have = append(have, string(key[3+8:])) // after the table and the directory's number
		require.Regexp(t, "^0101", pair["value"], "version 1, a file")
	}
	require.ElementsMatch(t, names, have)
	one := objects(t, works(t, nil, "inspect", "state", data, "--key", entries, "--limit", "1", "--json"))
	require.Len(t, one, 1)
	require.Len(t, objects(t, works(t, nil, "inspect", "state", data, "--key", one[0]["key"].(string), "--json")), 1)
	for _, pair := range objects(t, works(t, nil, "inspect", "state", data, "--key", signingKeys, "--json")) {
		require.NotRegexp(t, "^[0-9a-f]+$", pair["value"], "a secret is shown")
	}
	require.Positive(t, pairs[signingKeys])
	requireRefused(t, invoke(t, nil, "inspect", "state", data, "--key", "nothex"), 2, "--key", "hex")
}
