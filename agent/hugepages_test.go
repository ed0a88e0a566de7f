package agent_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestArenasHaveHugePages: on the tmpfs that an agent mounts, all of a slot is huge pages, where the kernel
// has them. On a tmpfs without them a save works too. The log says which it is.
func TestArenasHaveHugePages(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	rule, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
	if err != nil || strings.Contains(string(rule), "[deny]") || strings.Contains(string(rule), "[force]") {
		t.Skipf("this kernel decides about huge pages of tmpfs for all mounts: %q (%v)", rule, err)
	}
	for name, mount := range map[string]bool{"the agent's tmpfs": false, "a tmpfs without": true} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, 16<<20)
			n.arena = filepath.Join(diskDir(t), "arena")
			require.NoError(t, os.Mkdir(n.arena, 0o700))
			t.Cleanup(func() {
				if n.stop != nil {
					_ = n.stop()
				}
				_ = unix.Unmount(n.arena, unix.MNT_DETACH) // also where the test has failed
			})
			if mount {
				require.NoError(t, unix.Mount("test", n.arena, "tmpfs", 0, "size=32m,mode=0700,huge=never"))
			}
			var log lockedBuffer
			n.log = slog.New(slog.NewTextHandler(&log, nil))
			fallbacks := vmstat(t, "thp_file_fallback")
			n.start(time.Minute)
			p := n.peer(runPath, "one", 1)
			require.NoError(t, p.begin(1, 4<<20))
			all, huge := slotMemory(t, n.arena)
			require.EqualValues(t, 4<<10, all, "KiB mapped by the agent")
			require.NoError(t, p.seal(1, 1<<20))
			require.NoError(t, n.wait(1))
			require.NoError(t, n.stop())
			if mount {
				require.Zero(t, huge)
				require.Contains(t, log.String(), "the arenas have no huge pages")
				return
			}
			require.Regexp(t, `the arenas have huge pages.* huge=(within_size|advise)`, log.String())
			if huge < all && vmstat(t, "thp_file_fallback") > fallbacks {
				t.Skipf("the kernel had no free huge page: %d of %d KiB are in huge pages", huge, all)
			}
			require.Equal(t, all, huge, "KiB in huge pages")
		})
	}
}

// slotMemory returns how many KiB of slots this process has mapped, and how many of them as huge pages.
func slotMemory(t *testing.T, arena string) (all, huge int) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	of := false
	for line := range strings.Lines(string(maps)) {
		key, value, _ := strings.Cut(line, ":")
		n := 0
		switch f := strings.Fields(line); {
		case strings.Contains(f[0], "-"): // the first line of a mapping: a range of addresses
			of = strings.Contains(line, arena+"/slot-")
		case of && key == "Size":
			_, err = fmt.Sscan(value, &n)
			all += n
		case of && key == "ShmemPmdMapped":
			_, err = fmt.Sscan(value, &n)
			huge += n
		}
		require.NoError(t, err)
	}
	return all, huge
}

// vmstat returns a counter of the kernel; 0 if it has none of the name.
func vmstat(t *testing.T, name string) (n uint64) {
	t.Helper()
	text, err := os.ReadFile("/proc/vmstat")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			_, err := fmt.Sscan(value, &n)
			require.NoError(t, err)
		}
	}
	return n
}

// lockedBuffer is a buffer for logs.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
