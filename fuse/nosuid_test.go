package fuse_test

import (
	"bufio"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/fuse"
	"github.com/morainefs/moraine/integration/incluster"
)

// TestAMountGivesNoPrivileges: no file of a mount runs as its owner, and none is a
// device, since every holder of a certificate can set owners and modes.
func TestAMountGivesNoPrivileges(t *testing.T) {
	requireFuse(t)
	c := startCluster(t, incluster.Options{Metadata: 1, Chunkservers: 1})
	for name, cfg := range map[string]fuse.Config{"a": {}, "b": {ReadOnly: true}} {
		m := mount(t, c, name, mountOptions{mount: cfg})
		f, err := os.Open("/proc/self/mountinfo")
		require.NoError(t, err)
		var options []string
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if fields := strings.Fields(lines.Text()); fields[4] == m.dir {
				options = strings.Split(fields[5], ",")
			}
		}
		require.NoError(t, f.Close())
		require.Contains(t, options, "nosuid")
		require.Contains(t, options, "nodev")
	}
}
