package client_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

// schemesOf are the schemes of a file's stripes.
func schemesOf(t *testing.T, c *cluster, cl *client.Client, name string) (out []string) {
	t.Helper()
	a, err := cl.Stat(c.ctx, name)
	require.NoError(t, err)
	resp, err := rawclient.Of(cl).Meta(c.ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: uint64(a.Inode())}}})
	require.NoError(t, err)
	for _, s := range resp.GetExtents().Stripes {
		out = append(out, moraine.Scheme{K: uint8(s.Scheme.K), M: uint8(s.Scheme.M)}.String())
	}
	return out
}

// TestFilesBelowTwoPolicies: one client writes files in turn below directories of different
// policies, and below none, with stripe numbers that fit any of them. Each file has the scheme
// of its own directory. The same is true for a client that knew of no policy at first.
func TestFilesBelowTwoPolicies(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		admin := c.admin(config())
		defer admin.Close()
		cl := c.dial("c1", config())
		defer cl.Close()
		want := map[string]string{"/plain": "4+2", "/two": "x2", "/four": "x4"}
		for dir := range want {
			_, err := admin.MkdirAll(c.ctx, dir, 0o777)
			require.NoError(t, err)
		}
		data := bytesOf(1, 1<<20)
		write(t, c, cl, "/plain/before", data, 1<<20, false)
		for dir, scheme := range map[string]moraine.Scheme{"/two": {K: 1, M: 1}, "/four": {K: 1, M: 3}} {
			require.NoError(t, admin.Policies().Set(c.ctx, c.inode(admin, dir), client.Policy{Scheme: scheme}))
		}
		// The remaining earlier numbers are for the default scheme. Files would use that too
		// until the numbers are used up.
		time.Sleep(time.Minute)
		for n := range 20 {
			for dir, scheme := range want {
				name := fmt.Sprintf("%s/f%d", dir, n)
				write(t, c, cl, name, data, 1<<20, false)
				for _, have := range schemesOf(t, c, cl, name) {
					require.Equal(t, scheme, have, name)
				}
			}
		}
		other := c.dial("c2", config()) // its first grant names it
		defer other.Close()
		for _, dir := range []string{"/two", "/plain", "/four"} {
			write(t, c, other, dir+"/other", data, 1<<20, false)
			for _, have := range schemesOf(t, c, other, dir+"/other") {
				require.Equal(t, want[dir], have, dir)
			}
		}
		// The client soon follows a changed policy, or its removal.
		require.NoError(t, admin.Policies().Set(c.ctx, c.inode(admin, "/two"), client.Policy{}))
		time.Sleep(time.Minute)
		write(t, c, cl, "/two/later", data, 1<<20, false)
		require.Contains(t, schemesOf(t, c, cl, "/two/later"), "4+2")
	})
}
