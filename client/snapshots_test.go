package client_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
)

// A name of a snapshot leads to nothing but an entry of the directory of snapshots.
func TestNamesOfSnapshots(t *testing.T) {
	inCluster(t, 1, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		_, err := cl.MkdirAll(c.ctx, "/dir/below", 0o755)
		require.NoError(t, err)
		snapshot := func(name string) error {
			j, err := cl.Jobs().Snapshot(c.ctx, "/dir", name)
			if err != nil {
				return err
			}
			j, err = cl.Jobs().Wait(c.ctx, j.ID, nil)
			require.NoError(t, err)
			require.Equal(t, client.JobDone, j.State, j.Error)
			return nil
		}
		longest := strings.Repeat("n", moraine.MaxNameLen)
		require.NoError(t, snapshot("one"))
		require.NoError(t, snapshot(longest))
		require.ErrorIs(t, snapshot("one"), moraine.Exists)
		for _, name := range []string{"", ".", "..", "/", "../below", "a/b", "one/", longest + "n"} {
			require.ErrorIs(t, snapshot(name), moraine.InvalidArgument, "%q", name)
			require.ErrorIs(t, cl.Jobs().RemoveSnapshot(c.ctx, "/dir", name), moraine.InvalidArgument, "%q", name)
		}
		require.ErrorIs(t, cl.Jobs().RemoveSnapshot(c.ctx, "/dir", "two"), moraine.NotFound)
		for _, name := range []string{"/dir/below", "/dir/.snapshots/one/below"} {
			_, err = cl.Stat(c.ctx, name)
			require.NoError(t, err)
		}
		require.NoError(t, cl.Jobs().RemoveSnapshot(c.ctx, "/dir", "one"))
		require.NoError(t, cl.Jobs().RemoveSnapshot(c.ctx, "/dir", longest))
		require.ErrorIs(t, cl.Jobs().RemoveSnapshot(c.ctx, "/dir", "one"), moraine.NotFound)
	})
}
