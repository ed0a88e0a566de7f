package agent

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/morainefs/moraine"
	"golang.org/x/sys/unix"
)

const (
	// mountedDir is where root has its arenas: a tmpfs of the agent's own. No user's log-out and no
	// limit of a container touches it.
	mountedDir = "/run/moraine/arenas"
	// sharedDir is where an agent that may not mount has them.
	sharedDir = "/dev/shm/moraine"
	// mountSource marks the agent's own tmpfs in the table of mounts.
	mountSource = "moraine-arenas"
)

// arenaDir returns the directory of the arenas, ready for use: Config.Dir, or the default.
func arenaDir(cfg *Config, log *slog.Logger) (string, error) {
	if cfg.Dir == "" && os.Geteuid() == 0 {
		err := prepareDir(mountedDir, cfg, true, log)
		if err == nil || !errors.Is(err, moraine.PermissionDenied) {
			return mountedDir, err
		}
		log.Warn("no tmpfs mounted for the arenas; the agent uses one that is there", "dir", sharedDir, "err", err)
	}
	dir, err := filepath.Abs(cmp.Or(cfg.Dir, sharedDir))
	if err != nil {
		return "", err
	}
	return dir, prepareDir(dir, cfg, false, log)
}

// prepareDir makes dir, and mounts a tmpfs on it if dir is on a disk, or if own asks for one. The
// mount stays when the agent ends: the next agent finds the arenas there.
func prepareDir(dir string, cfg *Config, own bool, log *slog.Logger) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	// Two agents that start at once must not mount twice: the second mount would hide the first.
	parent, err := os.Open(filepath.Dir(dir))
	if err != nil {
		return err
	}
	defer parent.Close() // releases the lock
	if err := unix.Flock(int(parent.Fd()), unix.LOCK_EX); err != nil {
		return &os.PathError{Op: "lock", Path: parent.Name(), Err: err}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := ownedByAgent(dir); err != nil {
		return err
	}
	inMemory, err := onTmpfs(dir)
	if err != nil {
		return err
	}
	switch {
	case inMemory && isMountPoint(dir):
		return growMount(dir, cfg.Memory, log)
	case inMemory && !own, !inMemory && cfg.OnDisk:
		return nil
	}
	if err := mountOver(dir, cfg.Memory); err != nil {
		return cannotMount(dir, inMemory, err)
	}
	log.Info("mounted a tmpfs for the arenas", "dir", dir, "bytes", mountSize(cfg.Memory))
	return ownedByAgent(dir)
}

// cannotMount is the error of an agent that may not mount.
func cannotMount(dir string, inMemory bool, err error) error {
	where := "is on a disk"
	if inMemory {
		where = "is on a tmpfs that others use"
	}
	kind := moraine.Internal
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		kind = moraine.PermissionDenied
	}
	return &moraine.Error{Op: "agent", Ref: dir, Kind: kind, Err: fmt.Errorf(
		"%s %s, and the agent cannot mount a tmpfs there (%w): start the agent as root, name a directory of a tmpfs with --arena-dir (such as %s), or allow the disk with --arena-on-disk",
		dir, where, err, sharedDir)}
}

// mountOver mounts a tmpfs on an empty directory: it would hide what is there.
func mountOver(dir string, memory int64) error {
	entries, err := os.ReadDir(dir)
	switch {
	case err != nil:
		return err
	case len(entries) > 0:
		return fmt.Errorf("it has files, such as %s", entries[0].Name())
	}
	return mountTmpfs(dir, memory)
}

// mountTmpfs mounts a tmpfs with huge pages, where the kernel has them for files.
func mountTmpfs(dir string, memory int64) (err error) {
	for _, huge := range []string{",huge=within_size", ",huge=advise", ""} {
		options := fmt.Sprintf("size=%d,mode=0700%s", mountSize(memory), huge)
		err = unix.Mount(mountSource, dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options)
		if !errors.Is(err, unix.EINVAL) {
			return err
		}
	}
	return err
}

// mountSize is the size of a tmpfs whose slotRoom is at least memory, in bytes.
func mountSize(memory int64) int64 {
	if memory > math.MaxInt64/2 {
		return math.MaxInt64 / 2
	}
	return memory + memory/31 + 4<<20
}

// growMount gives an earlier agent's tmpfs the size that this one needs. It never shrinks one, and
// leaves the mounts of others alone.
func growMount(dir string, memory int64, log *slog.Logger) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	if slotRoom(&fs) >= memory || !mountedByAgent(dir) {
		return nil
	}
	err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, fmt.Sprintf("size=%d", mountSize(memory)))
	if err != nil {
		log.Warn("the tmpfs of the arenas keeps its size", "dir", dir, "err", err)
	}
	return nil
}

// mountedByAgent reports whether an agent has mounted what is mounted on dir.
func mountedByAgent(dir string) bool {
	table, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return false
	}
	escaped := mountName.Replace(dir)
	ours := false
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 2 && f[1] == escaped {
			ours = f[0] == mountSource && f[2] == "tmpfs" // the last mount is the visible one
		}
	}
	return ours
}

// isMountPoint reports whether something is mounted on dir.
func isMountPoint(dir string) bool {
	var st, above unix.Stat_t
	return unix.Stat(dir, &st) == nil && unix.Stat(filepath.Dir(dir), &above) == nil && st.Dev != above.Dev
}

// onTmpfs reports whether a directory is in memory.
func onTmpfs(dir string) (bool, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return false, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.HUGETLBFS_MAGIC, nil
}

// slotRoom returns how many bytes of slots a tmpfs has room for, beside their manifests. Containers
// often have one of 64 MiB. A tmpfs without a size has no bound.
func slotRoom(fs *unix.Statfs_t) int64 {
	if fs.Blocks == 0 {
		return math.MaxInt64
	}
	size := int64(fs.Blocks) * fs.Bsize
	return size - size/32
}

// ownedByAgent fails unless only the agent's user can write to dir. Everybody may make directories
// in /dev/shm, and whoever owns this one could plant manifests, which the agent writes to the
// cluster.
func ownedByAgent(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: dir, Err: err}
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR && int(st.Uid) == os.Geteuid() && st.Mode&0o022 == 0 {
		return nil
	}
	return &moraine.Error{Op: "agent", Ref: dir, Kind: moraine.PermissionDenied, Err: fmt.Errorf(
		"other users can write to the arenas' directory: remove it, or make it a directory of user %d with mode 0700", os.Geteuid())}
}
