package client_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/morainefs/moraine/transport/wire/ops"
)

// commands records the requests that change the state, each of which is in one log entry. fault, unless
// it is nil, answers instead of the service. take returns the names since the last call.
func (c *cluster) commands(fault metaHook) (take func() []string) {
	var mu sync.Mutex
	var met []string
	c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
		if o := ops.Of(req); o != nil && o.Effect == wire.Operation_COMMAND && o.Name != "keep" {
			mu.Lock()
			met = append(met, o.Name)
			mu.Unlock()
		}
		if fault == nil {
			return nil, nil
		}
		return fault(req)
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		out := slices.Clone(met)
		met = nil
		return out
	}
}

// isNewFile reports whether a request is a commit that makes its file.
func isNewFile(req *wire.MetaRequest) bool { return req.GetCommit().GetNewFile() != nil }

// TestASmallFileIsOneRequest: Create and Commit of a new small file, or of an empty one, are one request that changes
// the state, also where it replaces another and has attributes. A larger one needs an inode before.
func TestASmallFileIsOneRequest(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl, other := c.dial("c1", config()), c.dial("c2", config())
		defer cl.Close()
		defer other.Close()
		take := c.commands(nil)
		for _, size := range []int{0, 1, moraine.MaxInline} {
			for _, round := range []uint64{1, 2} {
				data := bytesOf(round, size)
				path := fmt.Sprint("/f", size)
				f, err := cl.Create(c.ctx, path, client.CreateOptions{Replace: true, Mode: 0o640, UID: 7, GID: 8,
					Xattrs: map[string][]byte{"user.a": []byte("1"), "user.b": []byte("2")}})
				require.NoError(t, err)
				require.NoError(t, f.SetXattr(c.ctx, "user.b", []byte("3")))
				require.NoError(t, f.SetXattr(c.ctx, "user.c", []byte("4")))
				_, err = f.Write(data)
				require.NoError(t, err)
				next, err := f.NextGeneration(c.ctx)
				require.NoError(t, err)
				require.Zero(t, f.Inode())
				res, err := f.Commit(c.ctx)
				require.NoError(t, err)
				require.Equal(t, []string{"commit"}, take())
				require.Equal(t, sum(data), res.CRC)
				if size > 0 || round > 1 { // the first commit shows the incarnation of the cluster
					require.Equal(t, res.Attr.Generation(), next)
				}
				a, err := other.Stat(c.ctx, path)
				require.NoError(t, err)
				require.Equal(t, res.Attr.Inode(), a.Inode())
				require.Equal(t, []uint32{0o640, 7, 8}, []uint32{a.Mode(), a.UID(), a.GID()})
				require.Equal(t, data, read(t, c, other, path))
				for name, want := range map[string]string{"user.a": "1", "user.b": "3", "user.c": "4"} {
					got, err := other.Xattrs().Get(c.ctx, a.Inode(), name)
					require.NoError(t, err)
					require.Equal(t, want, string(got))
				}
			}
		}
		require.Zero(t, c.chunks())
		write(t, c, cl, "/large", bytesOf(3, moraine.MaxInline+1), 5000, false)
		require.Subset(t, take(), []string{"create", "grant", "commit"})
	})
}

// TestASmallFileWhoseCommitFails: the answer to the commit that makes a file is lost, the name is taken since, the
// directory was made again, or the metadata keeps no more content.
func TestASmallFileWhoseCommitFails(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl, other := c.dial("c1", config()), c.dial("c2", config())
		defer cl.Close()
		defer other.Close()
		names := func() (l []string) {
			for e, err := range other.ReadDir(c.ctx, "/") {
				require.NoError(t, err)
				l = append(l, e.Name)
			}
			return l
		}
		data := bytesOf(1, 1000)
		begin := func(path string, opts client.CreateOptions) *client.File {
			opts.Xattrs = map[string][]byte{"user.a": []byte("1")}
			f, err := cl.Create(c.ctx, path, opts)
			require.NoError(t, err)
			_, err = f.Write(data)
			require.NoError(t, err)
			return f
		}
		whole := func(path string) {
			require.Equal(t, data, read(t, c, other, path))
			a, err := other.Stat(c.ctx, path)
			require.NoError(t, err)
			got, err := other.Xattrs().Get(c.ctx, a.Inode(), "user.a")
			require.NoError(t, err)
			require.Equal(t, "1", string(got))
		}

		lost := 0
		take := c.commands(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			if !isNewFile(req) {
				return nil, nil
			}
			if lost++; lost > 1 {
				return nil, nil
			}
			return func(*wire.MetaResponse, error) (*wire.MetaResponse, error) { return nil, errKind(moraine.Timeout) }, nil
		})
		_, err := begin("/lost", client.CreateOptions{}).Commit(c.ctx)
		require.NoError(t, err)
		tries := take()
		require.Greater(t, len(tries), 1)
		require.Equal(t, []string{"commit"}, slices.Compact(tries))
		require.Equal(t, []string{"lost"}, names())
		whole("/lost")

		c.OnMeta(nil)
		first, second := begin("/name", client.CreateOptions{}), begin("/name", client.CreateOptions{})
		_, err = first.Commit(c.ctx)
		require.NoError(t, err)
		_, err = second.Commit(c.ctx)
		require.ErrorIs(t, err, moraine.Exists)
		require.Equal(t, []string{"lost", "name"}, names())

		_, err = cl.Mkdir(c.ctx, "/dir", 0o755)
		require.NoError(t, err)
		f := begin("/dir/f", client.CreateOptions{})
		require.NoError(t, other.Remove(c.ctx, "/dir"))
		_, err = f.Commit(c.ctx)
		require.ErrorIs(t, err, moraine.NotFound)

		take = c.commands(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			if isNewFile(req) {
				return nil, errKind(moraine.NoSpace)
			}
			return nil, nil
		})
		res, err := begin("/stripes", client.CreateOptions{Mode: 0o600}).Commit(c.ctx)
		require.NoError(t, err)
		require.Zero(t, res.Attr.Inline())
		require.EqualValues(t, 0o600, res.Attr.Mode())
		require.Equal(t, []string{"commit", "create", "grant", "commit"}, take())
		whole("/stripes")
		require.ElementsMatch(t, []string{"lost", "name", "stripes"}, names())
	})
}
