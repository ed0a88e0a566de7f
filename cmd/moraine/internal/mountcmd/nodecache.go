package mountcmd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

// nodeCache are the flags of the cache on the node's disk.
type nodeCache struct {
	dir  string
	size cli.SizeFlag // 0: half of the disk
}

func (n *nodeCache) addFlags(f *pflag.FlagSet) {
	f.StringVar(&n.dir, "cache-dir", "", "directory of a local disk, in which all mounts of the node that name it "+
		"keep file bytes that were read (default: none)")
	f.Var(&n.size, "cache-size", "space for --cache-dir (default: half of its disk)")
}

// apply puts the flags into cfg. It fails if another user of the node could read what the cache
// has, or change it.
func (n *nodeCache) apply(cfg *client.Config) error {
	if n.dir == "" {
		if n.size != 0 {
			return cli.UsageError("--cache-size without --cache-dir: name the directory of the cache")
		}
		return nil
	}
	dir, err := filepath.Abs(n.dir)
	if err != nil {
		return err
	}
	if err := makePrivate(dir); err != nil {
		return err
	}
	cfg.CacheDir, cfg.CacheBytes = dir, int64(n.size)
	if n.size == 0 {
		cfg.CacheBytes, err = halfOfDisk(dir)
	}
	return err
}

// makePrivate makes dir where it is missing, and fails unless only this user may use it. It checks
// what it has made too: somebody else may have been faster.
func makePrivate(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("--cache-dir: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("--cache-dir: %w", err)
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("--cache-dir: %w", err)
	}
	if !st.IsDir() {
		return cli.UsageError("--cache-dir %s is not a directory", dir)
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); st.Mode().Perm()&0o077 != 0 || (ok && int(sys.Uid) != os.Geteuid()) {
		return fmt.Errorf("--cache-dir %s: other users can read or change what is cached: name a new directory, or empty this one "+
			"and make it yours alone with `chown %d %s && chmod 700 %s`", dir, os.Geteuid(), dir, dir)
	}
	return nil
}

// halfOfDisk returns half of the size of the disk on which dir is.
func halfOfDisk(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("--cache-dir %s: %w", dir, err)
	}
	return int64(st.Blocks) * st.Bsize / 2, nil
}
