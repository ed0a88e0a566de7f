package client_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
)

// TestAReadAfterAFailedRefreshIsNotOld: the read requests the content first.
func TestAReadAfterAFailedRefreshIsNotOld(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		_, a, b := twoLockers(c)
		defer a.Close()
		defer b.Close()
		of := [2]*client.Handle{openFile(c, a, "/f"), openFile(c, b, "/f")}
		writeAt(t, c, of[1], []byte("new"), 0)
		require.NoError(t, of[1].Flush(c.ctx))
		gone, leave := context.WithCancel(c.ctx)
		leave()
		require.ErrorIs(t, of[0].Refresh(gone), moraine.Canceled)
		got := make([]byte, 3)
		_, err := of[0].ReadAt(c.ctx, got, 0)
		require.NoError(t, err)
		require.Equal(t, "new", string(got))
		for _, h := range of {
			require.NoError(t, h.Close(c.ctx))
		}
	})
}
