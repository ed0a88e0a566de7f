package integration_test

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/morainefs/moraine/integration/bench"
	"github.com/stretchr/testify/require"
)

// Every benchmark runs to its end on a cluster of its own, and prints its lines
// with a value, a limit of the same run and their ratio. How large they are is
// not a test's business.
func TestBenchmarksRun(t *testing.T) {
	want := map[string]string{
		"write":         "write write-metadata-commands",
		"read":          "read",
		"read-degraded": "read read-degraded",
		"meta":          "raft create stat readdir rename unlink commit",
		"failover":      "create-under-load elections-under-load silences-under-load failover-median failover-worst",
		"scale":         "scale-load scale-restart scale-inodes scale-disk scale-memory scale-create scale-stat",
		"fuse":          "fuse-write fuse-write-metadata-commands fuse-read",
		"s3":            "s3-write s3-write-metadata-commands s3-read",
		"flush":         "flush",
		"stage":         "stage",
	}
	if !long() {
		want = map[string]string{"s3": want["s3"], "stage": want["stage"]}
	}
	bin, err := binary()
	require.NoError(t, err)
	for name, lines := range want {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(bin, "bench", name, "--json", "--modes", "crc", "--bytes", "96MiB", "--seconds", "0.5", "--inodes", "20000", "--dir", t.TempDir())
			var said strings.Builder
			cmd.Stderr = &said
			out, err := cmd.Output()
			require.NoError(t, err, said.String())
			var names []string
			for dec := json.NewDecoder(strings.NewReader(string(out))); dec.More(); {
				var l bench.Line
				require.NoError(t, dec.Decode(&l))
				names = append(names, l.Name)
				if l.Unit != "elections" && l.Unit != "silences" { // of which there should be none
					require.Positive(t, l.Value, l.Name)
				}
				if l.LimitName != "" {
					require.Positive(t, l.Limit, l.Name)
					require.InDelta(t, l.Value/l.Limit, l.Ratio, 1e-9, l.Name)
				}
			}
			require.Equal(t, lines, strings.Join(names, " "))
		})
	}
}
