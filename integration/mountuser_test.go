package integration_test

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// otherUser is a user without rights, on any Linux.
const otherUser = 65534

// userMount is a mount that a user other than root has made.
type userMount struct {
	*mountProc
	base string // a directory of the user
}

// as has a command run as the user.
func (u *userMount) as(cmd *exec.Cmd) *exec.Cmd {
	cmd.Dir, cmd.Env = "/", u.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUser, Gid: otherUser}}
	return cmd
}

func (u *userMount) must(t *testing.T, name string, args ...string) string {
	t.Helper()
	var errs bytes.Buffer
	cmd := u.as(exec.Command(name, args...))
	cmd.Stderr = &errs
	out, err := cmd.Output()
	require.NoError(t, err, "%s: %s", cmd, errs.String())
	return string(out)
}

// mountAsUser mounts the root of a cluster, in which /work is the user's.
func mountAsUser(t *testing.T, c *devcluster.Cluster) *userMount {
	t.Helper()
	root := connect(t, c, client.Config{})
	_, err := root.Mkdir(t.Context(), "/work", 0o777)
	require.NoError(t, err)
	base, err := os.MkdirTemp("/tmp", "moraine-user-") // a test's own directory is closed to others
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(base)) })
	bin, err := binary()
	require.NoError(t, err)
	program, err := os.ReadFile(bin)
	require.NoError(t, err)
	u := &userMount{base: base, mountProc: &mountProc{dir: filepath.Join(base, "mnt"), bin: filepath.Join(base, "program")}}
	require.NoError(t, os.WriteFile(u.bin, program, 0o755))
	certs := filepath.Join(base, "certs")
	require.NoError(t, os.CopyFS(certs, os.DirFS(c.Certs())))
	require.NoError(t, os.Mkdir(u.dir, 0o755))
	require.NoError(t, filepath.WalkDir(base, func(name string, d os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(name, ".key") {
			err = os.Chmod(name, 0o600)
		}
		if err != nil {
			return err
		}
		return os.Chown(name, otherUser, otherUser)
	}))
	u.env = append(os.Environ(), "MORAINE_ENDPOINT="+c.Endpoint(), "MORAINE_CERTS="+certs, "MORAINE_IDENTITY=admin",
		"MORAINE_MODE="+c.Mode(), "XDG_RUNTIME_DIR="+base, "HOME="+base)
	out := u.must(t, u.bin, "mount", "moraine:///", u.dir, "--json", "--log-file", u.log())
	t.Cleanup(func() { _ = unix.Unmount(u.dir, unix.MNT_DETACH) }) // if the test failed
	var said struct{ Pid int }
	require.NoError(t, json.Unmarshal([]byte(out[strings.IndexByte(out, '{'):]), &said), out)
	u.pid = said.Pid
	u.fd, err = unix.PidfdOpen(u.pid, 0)
	require.NoError(t, err)
	return u
}

// withDevice reports whether it has run the test once more, in a process that has /dev/fuse as most
// systems have it: any user may open it.
func withDevice(t *testing.T) bool {
	t.Helper()
	st, err := os.Stat("/dev/fuse")
	if err != nil {
		t.Skipf("nothing can be mounted here: %v", err)
	}
	if st.Mode().Perm()&0o006 == 0o006 {
		return false
	}
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command("sh", "-ec", `mount -t tmpfs none "$1"; mknod "$1/fuse" c 10 229; chmod 666 "$1/fuse"
		mount --bind "$1/fuse" /dev/fuse; exec "$2" -test.v -test.run "^$3\$"`, "sh", t.TempDir(), self, t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "--- PASS: "+t.Name())
	return true
}

// TestAMountOfAUserSurvivesACrash: a user other than root mounts, through fusermount3. The daemon is
// killed. A program that has a file open reads on, the mount serves, and the user can unmount it.
func TestAMountOfAUserSurvivesACrash(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	if _, err := exec.LookPath("fusermount3"); err != nil {
		t.Skip("fusermount3 is missing; `make setup` installs it")
	}
	if withDevice(t) {
		return
	}
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 3})
	u := mountAsUser(t, c)
	data := randomBytes(random(seed(t)), 3<<20)
	put := u.as(exec.Command("sh", "-c", "cat > work/file"))
	put.Dir, put.Stdin = u.dir, bytes.NewReader(data)
	out, err := put.CombinedOutput()
	require.NoError(t, err, string(out))

	// The program has read half of the file before the crash. It does the rest once it reads a line.
	reader := u.as(exec.Command("sh", "-c", `exec 3< work/file; head -c 1048576 <&3; read line; cat <&3; echo "$line" > work/later`))
	reader.Dir = u.dir
	input, err := reader.StdinPipe()
	require.NoError(t, err)
	output, err := reader.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, reader.Start())
	got := make([]byte, 1<<20)
	_, err = io.ReadFull(output, got)
	require.NoError(t, err)

	for range 2 {
		u.daemon(t, u.killDaemon(t, 0))
		u.must(t, "stat", "-f", u.dir) // it waits for the next daemon
	}
	_, err = input.Write([]byte("after the crash\n"))
	require.NoError(t, err)
	rest, err := io.ReadAll(output)
	require.NoError(t, err)
	require.NoError(t, reader.Wait())
	require.Equal(t, data, append(got, rest...))
	require.Equal(t, "after the crash\n", u.must(t, "cat", filepath.Join(u.dir, "work/later")))
	var st unix.Stat_t
	require.ErrorIs(t, unix.Stat(u.dir, &st), unix.EACCES, "root sees the mount of the user")

	u.must(t, u.bin, "umount", u.dir)
	u.gone(t)
}
