package client_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
)

// A directory that would be too deep is refused at once, in a delegated directory too.
func TestADelegatedDirectoryThatIsTooDeepIsRefused(t *testing.T) {
	inDelegated(t, func(c *cluster, a, b *client.Client, dir moraine.InodeID) {
		levels, at := 0, dir
		for ; levels < 1000; levels++ {
			d, err := a.Inodes().Mkdir(c.ctx, at, "d", client.NodeOptions{Mode: 0o755})
			if err != nil {
				require.ErrorIs(t, err, moraine.TooLarge)
				break
			}
			at = d.Inode()
		}
		require.Less(t, levels, 513)
		require.Greater(t, levels, 400)
		require.NoError(t, a.Inodes().Sync(c.ctx, 0))
		require.Zero(t, a.Stats().DelegatedLost)
		_, err := b.Inodes().Stat(c.ctx, at)
		require.NoError(t, err)
	})
}
