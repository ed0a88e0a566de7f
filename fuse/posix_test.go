package fuse_test

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/stretchr/testify/require"
)

// failing are the tests of go-fuse's suite that fail, with the reason.
var failing = map[string]string{
	"FcntlFlockLocksFile": "both of its locks are of one process, which POSIX grants; no Linux file system passes",
}

// envListed makes a child run one of them.
const envListed = "MORAINE_TEST_LISTED"

// TestPosix runs go-fuse's suite on a mount. A test that is listed as failing and
// passes fails TestPosix: the list must be true.
func TestPosix(t *testing.T) {
	if name := os.Getenv(envListed); name != "" {
		posix(t, mountOptions{}, name)
		return
	}
	requireFuse(t)
	for name, why := range failing {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestPosix$/^"+name+"$", "-test.v")
			cmd.Env = append(os.Environ(), envListed+"="+name)
			out, err := cmd.CombinedOutput()
			require.Error(t, err, "%s is listed as failing, because %s. It passes:\n%s", name, why, out)
			require.Contains(t, string(out), "--- FAIL: TestPosix/"+name, "it failed in another way")
		})
	}
	posix(t, mountOptions{}, passing()...)
}

// TestPosix with a mount to which directories are delegated.
func TestPosixInDelegatedDirectories(t *testing.T) { posix(t, delegating(), passing()...) }

// passing are the cases that are not listed as failing.
func passing() (names []string) {
	for _, name := range slices.Sorted(maps.Keys(posixtest.All)) {
		if failing[name] == "" {
			names = append(names, name)
		}
	}
	return names
}

func posix(t *testing.T, opts mountOptions, names ...string) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m := mount(t, c, "c1", opts)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			if name == "OpenSymlinkRace" && !testseed.Long() {
				t.Skip("a thousand rounds; TestOpenWhileReplaced has fewer")
			}
			dir := m.at(name)
			require.NoError(t, os.Mkdir(dir, 0o755))
			posixtest.All[name](t, dir)
			require.NoError(t, os.RemoveAll(dir))
			_, err := os.Lstat(filepath.Join(dir))
			require.ErrorIs(t, err, os.ErrNotExist)
		})
	}
}
