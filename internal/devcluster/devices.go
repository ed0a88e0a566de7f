package devcluster

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/disk"
	"github.com/morainefs/moraine/transport/pki"
)

// FormatDevices makes devices of cluster, as `moraine device format` does, in those
// of the directories that do not exist yet. It leaves an existing directory alone:
// it is already a device, or somebody removed the device.
func FormatDevices(cluster moraine.UUID, dirs ...string) error {
	for _, dir := range dirs {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			if err != nil {
				return err
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
			return err
		}
		if _, err := disk.Format(vfs.OS{}, dir, cluster, rand.Reader); err != nil {
			return err
		}
	}
	return nil
}

// formatDevices makes the devices of a chunkserver without any, and returns their
// directories.
func (c *Cluster) formatDevices(node string) (dirs []string, err error) {
	ca, err := pki.LoadCA(c.Certs())
	if err != nil {
		return nil, err
	}
	for d := range c.cfg.Devices {
		dirs = append(dirs, filepath.Join(c.cfg.Dir, node, fmt.Sprintf("device%d", d)))
	}
	return dirs, FormatDevices(ca.Cluster(), dirs...)
}
