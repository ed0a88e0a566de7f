package agent

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
)

// bootFile names the start of the node that the slots are of.
const bootFile = "boot"

// checkBoot removes the slots of an earlier start of the node. On a disk, a manifest may outlive a
// power cut while its slot has lost bytes. A tmpfs is empty after a start.
func (p *pool) checkBoot(log *slog.Logger) error {
	now, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	path := filepath.Join(p.dir, bootFile)
	before, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if string(before) == string(now) {
		return nil
	}
	files, err := p.leftovers()
	if err != nil {
		return err
	}
	for _, name := range files {
		if err := os.Remove(filepath.Join(p.dir, name)); err != nil {
			return err
		}
	}
	if len(files) > 0 {
		log.Warn("the node has started again: the parts in its memory are lost", "dir", p.dir, "files", len(files))
	}
	return os.WriteFile(path, now, 0o600)
}
