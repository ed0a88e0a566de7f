package client_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
)

// TestALockComesAfterTheUnlockBeforeIt: the caller of an unlock leaves at once, and the owner locks.
// The unlock, which goes on in the background, does not take that lock away.
func TestALockComesAfterTheUnlockBeforeIt(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		inode, a, b := twoLockers(c)
		defer a.Close()
		defer b.Close()
		gone, leave := context.WithCancel(c.ctx)
		leave()
		require.NoError(t, a.Inodes().Lock(c.ctx, inode, writing(1, 0, 10), false))
		for range 50 {
			if err := a.Inodes().Unlock(gone, inode, writing(1, 0, 10)); err != nil {
				require.ErrorIs(t, err, moraine.Canceled)
			}
			require.NoError(t, a.Inodes().Lock(c.ctx, inode, writing(1, 0, 10), false))
			synctest.Wait()
			require.ErrorIs(t, b.Inodes().Lock(c.ctx, inode, reading(1, 0, 1), false), moraine.Busy)
		}
	})
}
