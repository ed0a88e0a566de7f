package fuse_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/integration/incluster"
)

// TestAFailedReleaseIsRepeated: many files are unlinked while they are open, and the service refuses
// their release after the last close. The client repeats it until the service frees them. If the service refuses until the mount ends, the end of the session frees them, and the
// unmount does not wait.
func TestAFailedReleaseIsRepeated(t *testing.T) {
	const files = 50
	c := startCluster(t, incluster.Options{Seed: 1})
	other := mount(t, c, "c2")
	for _, opens := range []bool{true, false} {
		t.Run(fmt.Sprintf("service accepts again %t", opens), func(t *testing.T) {
			servers := &gate{}
			m := mount(t, c, fmt.Sprintf("c1-%t", opens), mountOptions{over: servers.over})
			var inodes []moraine.InodeID
			servers.failing("release", 0)
			for i := range files {
				path := m.at(fmt.Sprint("f", i))
				fd, err := unix.Open(path, unix.O_CREAT|unix.O_RDWR, 0o644)
				require.NoError(t, err)
				var st unix.Stat_t
				require.NoError(t, unix.Fstat(fd, &st))
				inodes = append(inodes, moraine.InodeID(st.Ino))
				require.NoError(t, unix.Unlink(path))
				require.NoError(t, unix.Close(fd))
			}
			require.Eventually(t, func() bool { return servers.count() > files }, time.Minute, time.Millisecond)
			if opens {
				servers.open()
			} else {
				require.NoError(t, m.end())
				require.NoError(t, m.client.Close())
				servers.open()
			}
			for _, i := range inodes {
				require.Eventually(t, func() bool {
					_, err := other.client.Inodes().Stat(t.Context(), i)
					return moraine.KindOf(err) == moraine.NotFound
				}, time.Minute, 10*time.Millisecond)
			}
		})
	}
}
