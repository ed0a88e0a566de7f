package integration_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestTheLocksOfAKilledMountEnd: the process of a mount is killed while a program has locks on it.
// Another client that waits for them gets them when the session has ended.
func TestTheLocksOfAKilledMountEnd(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 3, MetadataArgs: []string{"--session-timeout", "5s"}})
	m := mountCluster(t, c, "--no-supervisor")
	f, err := os.Create(filepath.Join(m.dir, "file"))
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	require.NoError(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}))
	other := connect(t, c, client.Config{})
	attr, err := other.Stat(t.Context(), "/file")
	require.NoError(t, err)
	flock := client.FileLock{Owner: 1, Flock: true, End: client.LockEnd, Write: true}
	fcntl := client.FileLock{Owner: 1, End: client.LockEnd}
	for _, l := range []client.FileLock{flock, fcntl} {
		_, own, found, err := other.Inodes().FindLock(t.Context(), attr.Inode(), l)
		require.NoError(t, err)
		require.True(t, found && !own)
	}
	waits := make(chan error, 1)
	go func() { waits <- other.Inodes().Lock(t.Context(), attr.Inode(), flock, true) }()
	m.kill(t)
	select {
	case err := <-waits:
		require.NoError(t, err)
	case <-time.After(3 * time.Minute):
		t.Fatal("the locks of the killed mount did not end")
	}
	require.NoError(t, other.Inodes().Lock(t.Context(), attr.Inode(), fcntl, false))
}
