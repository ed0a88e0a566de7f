package lint

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// maxFile limits the size of files in the tree, in bytes: a larger one is a build
// output.
const maxFile = 1 << 20

// TestNothingBuiltIsTracked fails on a file that is too large to be written by
// hand.
func TestNothingBuiltIsTracked(t *testing.T) {
	out, err := exec.Command("git", "-C", root, "ls-files", "-z").Output()
	if err != nil {
		t.Skipf("not a checkout: %v", err)
	}
	names := strings.Split(strings.Trim(string(out), "\x00"), "\x00")
	if len(names) < 100 {
		t.Fatalf("only %d files are tracked", len(names))
	}
	for _, name := range names {
		if info, err := os.Lstat(filepath.Join(root, name)); err == nil && info.Size() > maxFile {
			t.Errorf("%s has %d bytes: what is built stays out of the tree", name, info.Size())
		}
	}
}
