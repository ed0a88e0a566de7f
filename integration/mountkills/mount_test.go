package mountkills_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// mount is one that a supervisor keeps.
type mount struct {
	dir        string
	supervisor int // its process
	crashes    []time.Time
}

// crashesAMinute are fewer than those after which a supervisor gives up: five.
const crashesAMinute = 3

// crash kills the daemon with SIGKILL, and returns when another one serves.
func (m *mount) crash(t *testing.T) {
	t.Helper()
	pid := m.daemon(t, 0)
	fd, err := unix.PidfdOpen(pid, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0))
	require.NoError(t, ignoringEINTR(func() error {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		return err
	}))
	m.crashes = append(m.crashes, time.Now())
	m.daemon(t, pid)
	require.NoError(t, ignoringEINTR(func() error { return unix.Statfs(m.dir, new(unix.Statfs_t)) }))
}

// await waits until a further crash is no loop of crashes.
func (m *mount) await() {
	if n := len(m.crashes); n >= crashesAMinute {
		time.Sleep(time.Until(m.crashes[n-crashesAMinute].Add(time.Minute)))
	}
}

// daemon returns the process that serves the mount: a child of the supervisor. It waits for one other
// than the given one.
func (m *mount) daemon(t *testing.T, not int) int {
	t.Helper()
	for range 6000 {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", m.supervisor))
		require.NoError(t, err)
		for _, f := range files {
			text, _ := os.ReadFile(f) // a thread may end meanwhile
			for _, field := range strings.Fields(string(text)) {
				pid, err := strconv.Atoi(field)
				require.NoError(t, err)
				if pid != not {
					return pid
				}
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the supervisor has no daemon")
	return 0
}

func ignoringEINTR(call func() error) (err error) {
	for err = call(); errors.Is(err, unix.EINTR); err = call() {
	}
	return err
}
