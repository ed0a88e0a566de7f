package client_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
)

// A tree is cloned without moving a byte, although the first answer is lost and the leader that
// runs the job dies. A canceled clone leaves nothing.
func TestCloneTree(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		admin := c.admin(config())
		defer admin.Close()
		_, err := cl.MkdirAll(c.ctx, "/src/a/b", 0o755)
		require.NoError(t, err)
		files := map[string][]byte{}
		for n := range 40 {
			name := fmt.Sprintf("/a/f%d", n)
			files[name] = bytesOf(uint64(n), 1000*n)
			write(t, c, cl, "/src"+name, files[name], 1<<30, false)
		}
		before := c.puts()
		lost := loseReply(1, func(req *wire.MetaRequest) bool { return req.GetCloneTree() != nil })
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			return lost(req)
		})
		j, err := cl.Jobs().CloneTree(c.ctx, "/src", "/dst")
		require.NoError(t, err)
		c.OnMeta(nil)
		c.elect("m2")
		j, err = cl.Jobs().Wait(c.ctx, j.ID, nil)
		require.NoError(t, err)
		require.Equal(t, client.JobDone, j.State, j.Error)
		for name, data := range files {
			require.True(t, bytes.Equal(data, read(t, c, cl, "/dst"+name)), name)
		}
		require.Equal(t, before, c.puts(), "no byte moves")
		_, err = cl.Jobs().CloneTree(c.ctx, "/src", "/dst")
		require.ErrorIs(t, err, moraine.Exists)

		j, err = cl.Jobs().CloneTree(c.ctx, "/src", "/other")
		require.NoError(t, err)
		require.NoError(t, admin.Jobs().Cancel(c.ctx, j.ID))
		j, err = cl.Jobs().Wait(c.ctx, j.ID, nil)
		require.NoError(t, err)
		if j.State == client.JobCanceled {
			_, err = cl.Stat(c.ctx, "/other")
			require.ErrorIs(t, err, moraine.NotFound)
		}
		require.NoError(t, cl.RemoveAll(c.ctx, "/src"))
		time.Sleep(time.Minute)
		require.True(t, bytes.Equal(files["/a/f39"], read(t, c, cl, "/dst/a/f39")))
	})
}
