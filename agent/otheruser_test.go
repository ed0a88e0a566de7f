package agent_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// otherUser is a user without rights, on any Linux.
const otherUser = 65534

func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
}

// asAnotherUser runs the test that calls it once more, in a process of otherUser, which finds the agent's
// socket in MORAINE_TEST_AGENT_SOCKET. That run must pass.
func (n *node) asAnotherUser() {
	t := n.t
	t.Helper()
	require.NoError(t, os.Chmod(n.dir, 0o755))
	dir, err := os.MkdirTemp("/tmp", "moraine-agent-test-")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	require.NoError(t, os.Chmod(dir, 0o755))
	self, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	program := filepath.Join(dir, "test")
	require.NoError(t, os.WriteFile(program, self, 0o755))
	cmd := exec.Command(program, "-test.run", "^"+t.Name()+"$")
	cmd.Dir, cmd.Env = "/", append(os.Environ(), "MORAINE_TEST_AGENT_SOCKET="+n.socket())
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUser, Gid: otherUser}}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
}
