package fuse_test

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/morainefs/moraine/fuse"
	"github.com/stretchr/testify/require"
)

// TestAWaitForALockIsNotBounded: it goes on when other calls of the mount, which began later, have
// taken all their time.
func TestAWaitForALockIsNotBounded(t *testing.T) {
	servers, m := gatedMounts(t, 16, fuse.Config{CallPatience: 3 * time.Second})
	a, b := startLocker(t, m[1].at("file")), startLocker(t, m[0].at("file"))
	require.Equal(t, done, a.try(write, 0, 0))
	b.wait(write, 0, 0)
	servers.hold("create", 0)
	for i := range 2 {
		require.ErrorIs(t, os.Mkdir(m[0].at(fmt.Sprint("directory", i)), 0o755), syscall.ETIMEDOUT)
	}
	servers.open()
	select {
	case got := <-b.answers:
		require.FailNow(t, "the wait ended before the lock", got)
	default:
	}
	require.Equal(t, done, a.try(unlocked, 0, 0))
	require.Equal(t, done, b.answer())
}
