package fuse_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/morainefs/moraine/integration/incluster"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Modes, owners and groups decide permissions, and stat reports numbers and space
// of files.
func TestPermissions(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it needs two users, and so root")
	}
	c := startCluster(t, incluster.Options{Seed: 1})
	m := mount(t, c, "c1")
	for dir := m.dir; dir != "/"; dir = filepath.Dir(dir) { // the test's directories are private
		if st, err := os.Stat(dir); err == nil && st.Mode()&0o005 == 0 && dir != m.dir {
			require.NoError(t, os.Chmod(dir, st.Mode()|0o055))
		}
	}
	as := func(uid uint32, script string) error {
		cmd := exec.Command("sh", "-euc", "umask 027; cd \"$1\"; "+script, "sh", m.dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	require.NoError(t, os.Mkdir(m.at("shared"), 0o777))
	require.NoError(t, unix.Chmod(m.at("shared"), 0o1777))
	require.NoError(t, as(1001, `mkdir shared/d; echo mine > shared/f; ln -s f shared/l; chmod 2750 shared/d`))
	for name, mode := range map[string]uint32{"shared/d": syscall.S_IFDIR | 0o2750, "shared/f": syscall.S_IFREG | 0o640, "shared/l": syscall.S_IFLNK | 0o777} {
		var st unix.Stat_t
		require.NoError(t, unix.Lstat(m.at(name), &st))
		require.Equal(t, []uint32{1001, 1001, mode}, []uint32{st.Uid, st.Gid, st.Mode}, name)
	}
	for _, script := range []string{"cat shared/f", "echo more >> shared/f", "rm shared/f", "ls shared/d", "chmod 777 shared/f", "mv shared/f shared/g", "touch -d 2001-01-01 shared/f"} {
		require.Error(t, as(1002, script), script)
	}
	require.NoError(t, os.Chown(m.at("shared/f"), 1002, 1002))
	require.NoError(t, as(1002, "echo more >> shared/f; cat shared/f; chmod 600 shared/f"))

	// A change of the content by a user other than root clears setuid and setgid.
	for _, change := range []string{"echo again >> shared/f", "fallocate -l 100000 shared/f", "fallocate -p -o 0 -l 4096 shared/f"} {
		require.NoError(t, unix.Chmod(m.at("shared/f"), 0o6777))
		require.NoError(t, as(1001, change))
		var st unix.Stat_t
		require.NoError(t, unix.Stat(m.at("shared/f"), &st))
		require.Equal(t, uint32(syscall.S_IFREG|0o777), st.Mode, change)
	}

	requireBitsOfAnotherMountCleared(t, m, mount(t, c, "c2"))
	require.Error(t, as(1001, "mknod shared/device c 1 3"), "only root makes device nodes")
	require.NoError(t, unix.Mknod(m.at("regular"), unix.S_IFREG|0o600, 0))
	var fs unix.Statfs_t
	require.NoError(t, unix.Statfs(m.dir, &fs))
	require.NotZero(t, fs.Blocks)
	require.LessOrEqual(t, fs.Bavail, fs.Blocks)
}

// requireBitsOfAnotherMountCleared: a write through a file that was open before
// another mount set the bits clears them too, once its stat has shown them.
func requireBitsOfAnotherMountCleared(t *testing.T, m, other *mounted) {
	t.Helper()
	require.NoError(t, os.WriteFile(m.at("open"), []byte("content"), 0o644))
	f, err := os.OpenFile(m.at("open"), os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, unix.Chmod(other.at("open"), 0o6777))
	cmd := exec.Command("sh", "-euc", "echo more >&3")
	cmd.ExtraFiles = []*os.File{f}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1001, Gid: 1001}}
	_, err = f.Stat()
	require.NoError(t, err)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	var st unix.Stat_t
	require.NoError(t, unix.Stat(m.at("open"), &st))
	require.Equal(t, uint32(syscall.S_IFREG|0o777), st.Mode)
}
