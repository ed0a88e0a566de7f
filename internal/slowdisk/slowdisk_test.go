package slowdisk

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestUnmountWaitsForWhoHasAFileOpen closes the last file only after the unmount
// has been refused for longer than one call of it tries.
func TestUnmountWaitsForWhoHasAFileOpen(t *testing.T) {
	dir := t.TempDir()
	d, err := Mount(filepath.Join(dir, "at"), filepath.Join(dir, "backing"))
	if err != nil {
		t.Skip("needs root and FUSE: ", err)
	}
	f, err := os.Create(filepath.Join(dir, "at", "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // for when it fails; else it is closed
	ended := make(chan error, 1)
	go func() { ended <- d.Unmount() }()
	select {
	case err := <-ended:
		t.Fatalf("it was unmounted with a file open: %v", err)
	case <-time.After(time.Second):
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}
