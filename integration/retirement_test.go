package integration_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/devcluster"
)

// TestRetirementOnCommandLines: a device with chunks of stripes is not retired, and
// the command says what to do. A flag abandons the rest. --undo of a drain restores
// what the drain had, and names what stays unchanged.
func TestRetirementOnCommandLines(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 3})
	env := settingsFor(c)
	works(t, env, "cluster", "status", "--wait", "1m")
	local := filepath.Join(t.TempDir(), "in")
	require.NoError(t, os.WriteFile(local, make([]byte, 8<<20), 0o644))
	works(t, env, "cp", local, "moraine:///f")
	device := func(host string) (id, state string) {
		t.Helper()
		for _, d := range objects(t, works(t, env, "device", "ls", "--json")) {
			if d["host"] == host {
				return fmt.Sprint(d["id"]), fmt.Sprint(d["state"])
			}
		}
		t.Fatalf("%s has no device", host)
		return "", ""
	}
	wants := func(host, want string) {
		t.Helper()
		require.Eventually(t, func() bool {
			_, state := device(host)
			return state == want
		}, time.Minute, 50*time.Millisecond, "%s is to be %s", host, want)
	}

	n1, _ := device("n1")
	works(t, env, "device", "set", n1, "draining", "--reason", "it is noisy")
	works(t, env, "drain", "n1")
	works(t, env, "drain", "n2")
	wants("n2", "draining")
	o := invoke(t, env, "drain", "n1", "--undo")
	require.Zero(t, o.code, o.stderr)
	require.Contains(t, o.stdout, "device "+n1+" is still draining: it is noisy")
	o = invoke(t, env, "drain", "n2", "--undo")
	require.Zero(t, o.code, o.stderr)
	require.NotContains(t, o.stdout, "is still")
	wants("n1", "draining")
	wants("n2", "in")
	works(t, env, "device", "set", n1, "in")

	// With three hosts a chunk of the third cannot be rebuilt anywhere.
	n3, _ := device("n3")
	requireRefused(t, invoke(t, env, "device", "set", n3, "retired", "--accept-loss"), 1, "drain it or set it out first")
	works(t, env, "device", "set", n3, "out")
	requireRefused(t, invoke(t, env, "device", "set", n3, "retired"), 1, "stripes still have chunks on the device", "moraine cluster status", "--accept-loss")
	requireRefused(t, invoke(t, env, "host", "rm", "n3"), 1, "stripes still have chunks on the device", "--accept-loss")
	wants("n3", "out")
	requireRefused(t, invoke(t, env, "device", "set", n3, "in", "--accept-loss"), 2, "--accept-loss works only with retired")
	works(t, env, "host", "rm", "n3", "--accept-loss")
	wants("n3", "retired")
	requireRefused(t, invoke(t, env, "device", "set", n3, "in"), 1, "the device is retired for good")
}
