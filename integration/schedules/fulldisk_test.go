package schedules_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// mountSmall makes dir and mounts a new file system of n bytes there; the image is
// beside it.
func mountSmall(dir string, n int64) error {
	image := dir + ".image"
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(image, n); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, line := range [][]string{{"mkfs.ext4", "-q", "-m", "0", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.Command(line[0], line[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(line, " "), err, out)
		}
	}
	return nil
}

// unmount ends a mount.
func unmount(dir string) error {
	if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
		return fmt.Errorf("umount %s: %w: %s", dir, err, out)
	}
	return nil
}

// fillUp fills the file system of dir, and returns a function that frees the space.
// It has worked when a write fails for lack of space.
func fillUp(dir string) (undo func() error, err error) {
	name := filepath.Join(dir, "filler")
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	undo = func() error { return errors.Join(f.Close(), os.Remove(name)) }
	var at int64
	for size := int64(64 << 20); size >= blockBytes; { // in large pieces, and then in small ones
		err := syscall.Fallocate(int(f.Fd()), 0, at, size)
		if err == nil {
			at += size
			continue
		}
		if !errors.Is(err, syscall.ENOSPC) {
			return undo, err
		}
		size /= 2
	}
	p := make([]byte, 64*blockBytes)
	_, err = f.WriteAt(p, at)
	if err == nil {
		err = f.Sync()
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return undo, fmt.Errorf("%s is not full: %w", dir, err)
	}
	return undo, nil
}
