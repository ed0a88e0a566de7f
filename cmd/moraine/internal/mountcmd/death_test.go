package mountcmd

import (
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestStatesOfThreads parses what the kernel says of threads.
func TestStatesOfThreads(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text        string
		state       byte
		ended, dead bool
	}{
		{"Name:\tmoraine\nState:\tS (sleeping)\nSigQ:\t1/2\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n", 'S', false, false},
		{"Name:\tState:\nState:\tD (disk sleep)\nSigPnd:\t0000000000000100\n", 'D', false, true},
		{"State:\tD (disk sleep)\nSigPnd:\t0000000000004000\n", 'D', false, false},
		{"State:\tZ (zombie)\nSigPnd:\t0000000000000000\n", 'Z', true, true},
	} {
		th, err := parseThread([]byte(c.text))
		require.NoError(t, err)
		require.Equal(t, c.state, th.state, c.text)
		require.Equal(t, c.ended, th.ended(), c.text)
		require.Equal(t, c.dead, th.dead(), c.text)
	}
	_, err := parseThread([]byte("State:\tS (sleeping)\n"))
	require.Error(t, err)
}

// TestOnlyADeadProcessRemains: a process that lives, stops, or has ended and left no thread does not
// count as one whose threads remain. Its end is what wait returns.
func TestOnlyADeadProcessRemains(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sleep", "1000")
	require.NoError(t, cmd.Start())
	proc, err := os.OpenRoot("/proc/" + strconv.Itoa(cmd.Process.Pid))
	require.NoError(t, err)
	buf := make([]byte, 4096)
	require.False(t, remains(proc, buf))
	require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
	var status unix.Siginfo
	require.NoError(t, unix.Waitid(unix.P_PID, cmd.Process.Pid, &status, unix.WSTOPPED|unix.WNOWAIT, nil))
	require.False(t, remains(proc, buf))
	leader, err := readThread(proc, "status", buf)
	require.NoError(t, err)
	require.Equal(t, byte('T'), leader.state)
	require.False(t, leader.dead())

	require.NoError(t, cmd.Process.Signal(syscall.SIGKILL))
	require.NoError(t, unix.Waitid(unix.P_PID, cmd.Process.Pid, &status, unix.WEXITED|unix.WNOWAIT, nil))
	leader, err = readThread(proc, "status", buf)
	require.NoError(t, err)
	require.True(t, leader.ended())
	require.False(t, remains(proc, buf))
	var exit *exec.ExitError
	require.ErrorAs(t, awaitDeath(proc, cmd.Wait), &exit)
	_, err = readThread(proc, "status", buf)
	require.Error(t, err)
}
